/* Callbacks that do not return: by an exception, by a Rust panic from argv[1], by the end of their thread. Each is
 * forbidden, and each ends the process with last words that name the callback, instead of unwinding through it. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <signal.h>

void throw_exception(void);

enum place { NEW_REQUEST, LOOKUP, CREATE_STORE_JOB, REQUEST_FINISHED, DROP, LOG, LOG_DROP, PLACES };

static const char *const names[PLACES] = {"new_request",      "lookup", "create_store_job",  "request_finished",
                                          "the serve op `drop", "the log callback ", "the log callback's `drop"};

static struct tier producer, consumer;
static enum place bad_place;
static void (*bad_deed)(void);

static void end_thread(void) { pthread_exit(NULL); }

static void at(enum place place) {
  if (place == bad_place) bad_deed();
}

static void new_request(void *user_data, uint64_t id, const char *a, size_t a_len, const char *b, size_t b_len) {
  (void)user_data, (void)id, (void)a, (void)a_len, (void)b, (void)b_len;
  at(NEW_REQUEST);
}

static void lookup(void *user_data, uint64_t id, const p2p_keys *keys, uint32_t *states_out) {
  (void)user_data, (void)id;
  at(LOOKUP);
  for (size_t i = 0; i < keys->count; ++i) states_out[i] = P2P_LOOKUP_HIT;
}

static void create_store_job(void *user_data, uint64_t id, const p2p_keys *keys, uint64_t *job_out, uint32_t *blocks) {
  (void)user_data, (void)id;
  at(CREATE_STORE_JOB);
  *job_out = id;
  for (size_t i = 0; i < keys->count; ++i) blocks[i] = (uint32_t)i;
}

static void request_finished(void *user_data, uint64_t id) {
  (void)user_data, (void)id;
  at(REQUEST_FINISHED);
}

static void drop(void *user_data) {
  (void)user_data;
  at(DROP);
}

static void hear(void *user_data, uint32_t level, const char *target, const char *message) {
  (void)user_data, (void)level, (void)target, (void)message;
  at(LOG);
}

static void log_drop(void *user_data) {
  (void)user_data;
  at(LOG_DROP);
}

static void *serves(void *unused) {
  (void)unused;
  for (;;) {
    CHECK_OK(p2p_serve(producer.tier));
    pause_ms(1);
  }
  return NULL;
}

/* Comes to all of the places, once with each callback on the thread that `flags` says. */
static void go_everywhere(uint32_t flags) {
  p2p_serve_ops ops = {0};
  pthread_t server;
  char name[264];
  CHECK_OK(p2p_log_set_callback(P2P_LOG_TRACE, hear, NULL, log_drop));
  open_tier(&producer);
  open_tier(&consumer);
  for (int i = 0; i < BLOCKS; ++i) memset(producer.memory[i], byte_of(i), BLOCK_LEN);
  ops.struct_size = sizeof ops;
  ops.flags = flags;
  ops.new_request = new_request;
  ops.lookup = lookup;
  ops.create_store_job = create_store_job;
  ops.request_finished = request_finished;
  ops.drop = drop;
  CHECK_OK(p2p_tier_set_serve_ops(producer.tier, &ops));
  if (flags == 0) CHECK(pthread_create(&server, NULL, serves, NULL) == 0);
  name_of(&producer, name);
  pull_all(&consumer, name);
  CHECK_OK(p2p_tier_set_serve_ops(producer.tier, NULL));
  CHECK_OK(p2p_log_set_callback(P2P_LOG_OFF, NULL, NULL, NULL));
  _exit(0);
}

/* How a child ended, and what it said. */
static int end_of(enum place place, void (*deed)(void), uint32_t flags, char *said, size_t room) {
  int ends[2], code;
  size_t at = 0;
  ssize_t n;
  pid_t pid;
  CHECK(pipe(ends) == 0);
  pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    alarm(20);
    CHECK(dup2(ends[1], 2) == 2);
    close(ends[0]);
    close(ends[1]);
    bad_place = place;
    bad_deed = deed;
    go_everywhere(flags);
  }
  close(ends[1]);
  while ((n = read(ends[0], said + at, room - 1 - at)) > 0) at += (size_t)n;
  said[at] = '\0';
  close(ends[0]);
  code = exit_code_of(pid);
  return code;
}

int main(int count, char **arguments) {
  static char said[1 << 16];
  void (*deeds[])(void) = {throw_exception, end_thread, NULL};
  void *plugin;
  CHECK(count == 2);
  plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(plugin != NULL);
  *(void **)&deeds[2] = dlsym(plugin, "plugin_panic");
  CHECK(deeds[2] != NULL);
  for (uint32_t flags = 0; flags <= P2P_SERVE_ON_PROGRESS_THREAD; ++flags) {
    int code = end_of(PLACES, end_thread, flags, said, sizeof said);
    if (code != 0) fprintf(stderr, "without a bad deed: %d: %s\n", code, said);
    CHECK(code == 0);
    for (int place = 0; place < PLACES; ++place) {
      /* Every deed where the library calls most; elsewhere the guard is the same. */
      size_t all = place == LOOKUP || place == LOG ? sizeof deeds / sizeof deeds[0] : 1;
      for (size_t deed = 0; deed < all; ++deed) {
        code = end_of((enum place)place, deeds[deed], flags, said, sizeof said);
        if (code != 1000 + SIGABRT || strstr(said, names[place]) == NULL) {
          fprintf(stderr, "%s, deed %zu, flags %u: %d: %s\n", names[place], deed, flags, code, said);
        }
        CHECK(code == 1000 + SIGABRT && strstr(said, names[place]) != NULL);
      }
    }
  }
  return 0;
}
