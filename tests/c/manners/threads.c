/* Threads: those of the host may be small, be cancelled and end; those of the library are few and say whose they are. */
#define _GNU_SOURCE
#include "host.h"

#include <sched.h>
#include <sys/mman.h>

enum { STACK = 64 * 1024, PAGE = 4096, FILL = 0xa5 };

static struct tier producer, consumer, small;
static char producer_name[264];

static void answer(void *user_data, uint64_t serve_id, const p2p_keys *keys, uint32_t *states_out) {
  (void)user_data, (void)serve_id, (void)keys, (void)states_out;
}

static void hear(void *user_data, uint32_t level, const char *target, const char *message) {
  (void)user_data, (void)level, (void)target, (void)message;
}

/* Every function that takes more than a look, on whichever thread calls this. */
static void *use_all_of_it(void *unused) {
  uint8_t bytes[BLOCKS][KEY_LEN];
  uint32_t states[BLOCKS], number;
  p2p_keys keys = all_keys(bytes);
  p2p_serve_ops ops = {0};
  p2p_peer_info info[1];
  p2p_tier_statistics stats = {0};
  p2p_job_result result;
  char text[512];
  size_t n;
  (void)unused;
  open_tier(&small);
  publish_all(&small);
  ops.struct_size = sizeof ops;
  ops.lookup = answer;
  CHECK_OK(p2p_tier_set_serve_ops(small.tier, &ops));
  CHECK_OK(p2p_serve(small.tier));
  CHECK_OK(p2p_unpublish(small.tier, &keys, states));
  pull_all(&small, producer_name);
  CHECK(p2p_peers(small.tier, info, sizeof info[0], 1, &n) >= 0);
  stats.struct_size = sizeof stats;
  CHECK_OK(p2p_tier_stats(small.tier, &stats));
  CHECK(p2p_tier_metrics_text(small.tier, text, sizeof text, &n) != P2P_STATUS_PANIC);
  CHECK_OK(p2p_poll_finished(small.tier, &result, sizeof result, 1, &n));
  CHECK_OK(p2p_tier_has_pending_work(small.tier, &number));
  CHECK(p2p_submit_store(NULL, 1, &keys, states) == P2P_STATUS_INVALID_ARGUMENT);
  CHECK_OK(p2p_tier_drain(small.tier, 100));
  close_tier(&small);
  return NULL;
}

/* Painted before, so that what was never touched can be seen afterwards. */
static size_t stack_used_by(void *(*life)(void *)) {
  uint8_t *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_t thread;
  size_t untouched = 0;
  CHECK(stack != MAP_FAILED);
  memset(stack, FILL, STACK);
  CHECK(mprotect(stack, PAGE, PROT_NONE) == 0);
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstack(&attributes, stack, STACK) == 0);
  CHECK(pthread_create(&thread, &attributes, life, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  while (untouched < STACK - PAGE && stack[PAGE + untouched] == FILL) ++untouched;
  CHECK(munmap(stack, STACK) == 0);
  return STACK - PAGE - untouched;
}

static int is_ours(const char *name) {
  return strncmp(name, "p2pkv-", 6) == 0 || strncmp(name, "ZMQbg/", 6) == 0;
}

/* Threads but the main one; how many of them are named as the library's. */
static int library_threads(int *all) {
  DIR *tasks = opendir("/proc/self/task");
  struct dirent *task;
  int ours = 0;
  *all = 0;
  CHECK(tasks != NULL);
  while ((task = readdir(tasks)) != NULL) {
    char path[300], name[32] = "";
    FILE *file;
    if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    file = fopen(path, "r");
    CHECK(file != NULL && fgets(name, sizeof name, file) != NULL);
    fclose(file);
    ours += is_ours(name);
    ++*all;
  }
  closedir(tasks);
  return ours;
}

/* A thread names itself when it begins to run, a moment after it was made. */
static void names_say_whose_threads_they_are(int expected) {
  double end = seconds() + 5;
  int all, ours;
  while (((ours = library_threads(&all)) != expected || all != expected) && seconds() < end) pause_ms(5);
  if (ours != expected || all != expected) fprintf(stderr, "%d threads, %d of the library, %d expected\n", all, ours, expected);
  CHECK(ours == expected && all == expected);
}

/* Between its calls there is no other point at which it could be cancelled. */
static void *pulls_until_cancelled(void *unused) {
  (void)unused;
  for (int i = 0; i < 1000000; ++i) {
    pull_all(&consumer, producer_name);
    pthread_testcancel();
  }
  return NULL;
}

/* A thread that is cancelled in a call finishes the call first, and the tier is as good as before. */
static void cancelled_threads_leave_no_mess(void) {
  for (int i = 0; i < 20; ++i) {
    pthread_t thread;
    void *end;
    CHECK(pthread_create(&thread, NULL, pulls_until_cancelled, NULL) == 0);
    pause_ms(5 + i);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &end) == 0 && end == PTHREAD_CANCELED);
  }
  pull_all(&consumer, producer_name);
}

static void *fails_and_ends(void *unused) {
  (void)unused;
  CHECK(p2p_serve(NULL) == P2P_STATUS_INVALID_ARGUMENT);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_TRACE, hear, NULL, NULL));
  pull_all(&consumer, producer_name);
  return NULL;
}

/* What each thread has of its own (its last error) goes with it. */
static void threads_come_and_go(void) {
  long before = 0;
  for (int i = 0; i < 300; ++i) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fails_and_ends, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    if (i == 100) before = resident_kib();
  }
  CHECK(resident_kib() < before + 2048);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_OFF, NULL, NULL, NULL));
}

int main(void) {
  size_t used;
  open_tier(&producer);
  publish_all(&producer);
  name_of(&producer, producer_name);
  names_say_whose_threads_they_are(4);
  used = stack_used_by(use_all_of_it);
  printf("%zu\n", used);
  CHECK(used < STACK / 2);
  wait_for_threads(1 + 4);
  open_tier(&consumer);
  names_say_whose_threads_they_are(2 * 4);
  pull_all(&consumer, producer_name);
  names_say_whose_threads_they_are(2 * 4);
  cancelled_threads_leave_no_mess();
  threads_come_and_go();
  close_tier(&consumer);
  close_tier(&producer);
  wait_for_threads(1);
  return 0;
}
