/* A host with another Rust library in it, argv[1], that has its own logger: both log, and neither notices. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>

static struct tier tier;

/* What is written to stderr while `say` runs. */
static void heard_from(void (*say)(void), char *heard, size_t room) {
  int ends[2], before = dup(2);
  ssize_t n;
  CHECK(pipe(ends) == 0 && before >= 0 && dup2(ends[1], 2) == 2);
  say();
  CHECK(dup2(before, 2) == 2);
  close(before);
  close(ends[1]);
  n = read(ends[0], heard, room - 1);
  heard[n < 0 ? 0 : n] = '\0';
  close(ends[0]);
}

static void library_logs(void) {
  open_tier(&tier);
  close_tier(&tier);
}

int main(int count, char **arguments) {
  static char heard[1 << 16];
  void *plugin;
  int (*log_init)(void);
  void (*log)(void);
  CHECK(count == 2);
  plugin = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  if (plugin == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(plugin != NULL);
  *(void **)&log_init = dlsym(plugin, "plugin_log_init");
  *(void **)&log = dlsym(plugin, "plugin_log");
  CHECK(log_init != NULL && log != NULL);

  heard_from(library_logs, heard, sizeof heard);
  CHECK(heard[0] == '\0');
  CHECK_OK(p2p_log_init(P2P_LOG_INFO));
  CHECK(log_init() == 0);
  CHECK_OK(p2p_log_init(P2P_LOG_INFO));
  heard_from(library_logs, heard, sizeof heard);
  CHECK(strstr(heard, "p2pkv[") != NULL && strstr(heard, "tcp data plane") != NULL);
  heard_from(log, heard, sizeof heard);
  CHECK(strstr(heard, "the plugin speaks") != NULL && strstr(heard, "p2pkv[") == NULL);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_OFF, NULL, NULL, NULL));
  heard_from(library_logs, heard, sizeof heard);
  CHECK(heard[0] == '\0');
  heard_from(log, heard, sizeof heard);
  CHECK(strstr(heard, "the plugin speaks") != NULL);
  return 0;
}
