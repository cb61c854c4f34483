/* A host that is short of threads, descriptors or memory: p2p_tier_new says so by name and leaves nothing behind. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

static struct tier tier, other;
static atomic_int running, most_running = 1000;

struct start {
  void *(*life)(void *);
  void *with;
};

static void *count_it(void *argument) {
  struct start start = *(struct start *)argument;
  void *result;
  free(argument);
  result = start.life(start.with);
  atomic_fetch_sub(&running, 1);
  return result;
}

/* In place of the C library's: refuses threads beyond `most_running`, as a limit of processes does. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*life)(void *), void *with) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  struct start *start = malloc(sizeof *start);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  start->life = life;
  start->with = with;
  if (atomic_fetch_add(&running, 1) >= atomic_load(&most_running)) {
    atomic_fetch_sub(&running, 1);
    free(start);
    return EAGAIN;
  }
  return real(thread, attributes, count_it, start);
}

/* A refusal is named and changes nothing. */
static int opens(const char *what) {
  int fds = open_fds(), threads = live_threads();
  p2p_status status = try_open(&tier);
  if (status == P2P_STATUS_OK) {
    close_tier(&tier);
    wait_for_threads(threads);
    CHECK(open_fds() == fds);
    return 1;
  }
  if (status != P2P_STATUS_OUT_OF_RESOURCES) fprintf(stderr, "%s: %s\n", what, p2p_status_name(status));
  CHECK(status == P2P_STATUS_OUT_OF_RESOURCES);
  CHECK(p2p_last_error()[0] != '\0' && tier.tier == NULL);
  wait_for_threads(threads);
  CHECK(open_fds() == fds);
  return 0;
}

static void without_threads(void) {
  int refused = 0;
  for (int most = 0; most <= 4; ++most) {
    atomic_store(&most_running, most);
    refused += !opens("threads");
  }
  CHECK(refused == 4);
  atomic_store(&most_running, 1000);
  CHECK(opens("threads"));
}

/* Names cannot be resolved then; a tier that has its address does not need to. */
static void without_a_thread_for_names(void) {
  p2p_request *request;
  uint32_t outcome;
  atomic_store(&most_running, 4);
  open_tier(&tier);
  request = request_from(&tier, "localhost:1");
  for (int i = 0; i < 1000; ++i) {
    CHECK_OK(p2p_request_outcome(request, &outcome, NULL, 0, NULL));
    if (outcome != P2P_OUTCOME_DONE) break;
    pause_ms(5);
  }
  CHECK(outcome == P2P_OUTCOME_NO_PEER);
  CHECK_OK(p2p_request_finish(request));
  close_tier(&tier);
  atomic_store(&most_running, 1000);
}

static void with_few_descriptors(void) {
  struct rlimit before, limit;
  int refused = 0, open_already = open_fds(), most;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  limit = before;
  for (most = open_already; most < open_already + 64; ++most) {
    limit.rlim_cur = (rlim_t)most;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (opens("descriptors")) break;
    ++refused;
  }
  CHECK(refused > 8 && most < open_already + 64);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

/* Descriptors run out while a tier lives: what it has goes on, and it recovers when there are some again. */
static void descriptors_run_out_later(void) {
  static const char *const nobody = "127.0.0.1:1";
  struct rlimit before, limit;
  char name[264];
  p2p_request *request;
  open_tier(&tier);
  open_tier(&other);
  publish_all(&tier);
  name_of(&tier, name);
  pull_all(&other, name);
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  limit = before;
  limit.rlim_cur = 3;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  pull_all(&other, name);
  request = request_from(&other, nobody);
  pull_all(&other, name);
  CHECK_OK(p2p_request_finish(request));
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  pull_all(&other, name);
  close_tier(&other);
  close_tier(&tier);
}

/* Ends with 0 when a tier could be had, 7 when it was refused. */
static int with_no_more_than(long kib) {
  struct rlimit limit;
  long pages = 0;
  p2p_status status;
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file != NULL && fscanf(file, "%ld", &pages) == 1);
  fclose(file);
  limit.rlim_cur = limit.rlim_max = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + kib * 1024);
  alarm(10);
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  status = try_open(&tier);
  CHECK(status == P2P_STATUS_OK || status == P2P_STATUS_OUT_OF_RESOURCES);
  if (status != P2P_STATUS_OK) return 7;
  close_tier(&tier);
  return 0;
}

/* No address space: a refusal by name, or, where the allocator itself finds nothing, the abort that is documented.
 * Never a crash, a hang or a tier that half works. */
static void with_little_memory(const char *program) {
  const long steps_kib[] = {0, 256, 1024, 4096, 9000, 12000, 17000, 24000, 33000, 48000, 65000, 100000};
  int refused = 0, opened = 0;
  for (size_t i = 0; i < sizeof steps_kib / sizeof steps_kib[0]; ++i) {
    int code;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      char text[32];
      snprintf(text, sizeof text, "%ld", steps_kib[i]);
      execl(program, program, text, (char *)NULL);
      _exit(1);
    }
    code = exit_code_of(pid);
    if (code != 0 && code != 7) fprintf(stderr, "with %ld KiB: %d\n", steps_kib[i], code);
    CHECK(code == 0 || code == 7 || code == 1000 + SIGABRT);
    refused += code == 7;
    opened += code == 0;
  }
  CHECK(opened > 0 && refused > 0);
}

int main(int count, char **arguments) {
  void *memory = NULL;
  if (count > 1) return with_no_more_than(atol(arguments[1]));
  CHECK(opens("at first"));
  without_threads();
  without_a_thread_for_names();
  with_few_descriptors();
  descriptors_run_out_later();
  with_little_memory(arguments[0]);
  CHECK_STATUS(P2P_STATUS_OUT_OF_RESOURCES, p2p_region_alloc(UINT64_C(1) << 62, 0, &memory));
  return 0;
}
