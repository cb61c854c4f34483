/* A host that ends while a tier lives and pulls: by its own code, at once, whichever way it goes. */
#define _GNU_SOURCE
#include "host.h"

static struct tier producer, consumer;
static char producer_name[264];
static atomic_int pulls;

static void *pulls_for_ever(void *unused) {
  (void)unused;
  for (;;) {
    pull_all(&consumer, producer_name);
    atomic_fetch_add(&pulls, 1);
  }
  return NULL;
}

static void *exits(void *code) {
  exit(*(int *)code);
  return NULL;
}

static void *exits_once_main_has_gone(void *code) {
  int before = atomic_load(&pulls);
  while (atomic_load(&pulls) < before + 3) pause_ms(1);
  exit(*(int *)code);
  return NULL;
}

static void registered(void) { atomic_fetch_add(&pulls, 1); }

static void begin(void) {
  pthread_t puller;
  open_tier(&producer);
  open_tier(&consumer);
  publish_all(&producer);
  name_of(&producer, producer_name);
  CHECK(atexit(registered) == 0 && at_quick_exit(registered) == 0);
  CHECK(pthread_create(&puller, NULL, pulls_for_ever, NULL) == 0);
  while (atomic_load(&pulls) < 3) pause_ms(1);
}

/* argv[1] says which way. Each ends with 42. */
static int end(const char *way) {
  static int code = 42;
  pthread_t thread;
  begin();
  if (strcmp(way, "exit") == 0) exit(code);
  if (strcmp(way, "_exit") == 0) _exit(code);
  if (strcmp(way, "quick_exit") == 0) quick_exit(code);
  if (strcmp(way, "thread") == 0) {
    CHECK(pthread_create(&thread, NULL, exits, &code) == 0);
    pause();
  }
  if (strcmp(way, "pthread_exit") == 0) {
    CHECK(pthread_create(&thread, NULL, exits_once_main_has_gone, &code) == 0);
    pthread_exit(NULL);
  }
  return code;
}

int main(int count, char **arguments) {
  const char *const ways[] = {"exit", "_exit", "quick_exit", "thread", "pthread_exit", "return"};
  if (count > 1) return end(arguments[1]);
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
    for (int again = 0; again < 3; ++again) {
      double start = seconds();
      pid_t pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) {
        execl(arguments[0], arguments[0], ways[i], (char *)NULL);
        _exit(1);
      }
      int code = exit_code_of(pid);
      if (code != 42) fprintf(stderr, "%s ended with %d\n", ways[i], code);
      CHECK(code == 42);
      CHECK(seconds() - start < 2);
    }
  }
  return 0;
}
