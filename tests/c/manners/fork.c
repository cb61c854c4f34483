/* A host that forks: what its children may do, and what they must not do to their parent. */
#define _GNU_SOURCE
#include "host.h"

#include <fcntl.h>

static struct tier producer, consumer;
static char producer_name[264];

/* A child that hangs is ended by its alarm, which is no exit code of ours. */
static pid_t child_of(void (*life)(void *), void *with) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    alarm(20);
    life(with);
    _exit(0);
  }
  return pid;
}

static void exits(void *unused) { (void)unused; }

static void exits_through_atexit(void *unused) {
  (void)unused;
  exit(0);
}

static char fds_at_start[16];

/* Started again by exec: any descriptor that the host itself did not start with is a leak. */
static int executed(const char *fds_of_parent) { return open_fds() == atoi(fds_of_parent) ? 0 : 9; }

static void execs(void *program) {
  const char *const arguments[] = {program, fds_at_start, NULL};
  execv(program, (char *const *)arguments);
  _exit(8);
}

static void opens_a_tier_and_pulls_from_the_parent(void *unused) {
  static struct tier own;
  (void)unused;
  open_tier(&own);
  pull_all(&own, producer_name);
  close_tier(&own);
}

static void calls_everything(void *with) {
  p2p_request *request = with;
  const p2p_tier *tier = consumer.tier;
  uint8_t bytes[BLOCKS][KEY_LEN];
  p2p_keys keys = all_keys(bytes);
  uint32_t numbers[BLOCKS] = {0};
  p2p_job_result result;
  p2p_peer_info info;
  p2p_tier_statistics stats = {0};
  p2p_request *made = NULL;
  p2p_serve_ops ops = {0};
  size_t n = 0;
  int32_t fd = -1;
  char text[300];
  stats.struct_size = sizeof stats;
  ops.struct_size = sizeof ops;
#define WRONG(call) CHECK_STATUS(P2P_STATUS_WRONG_PROCESS, call)
  WRONG(p2p_tier_drain(tier, 1000));
  WRONG(p2p_tier_event_fd(tier, &fd));
  WRONG(p2p_tier_local_id(tier, text, sizeof text, &n));
  WRONG(p2p_tier_has_pending_work(tier, numbers));
  WRONG(p2p_request_new(tier, NULL, &made));
  WRONG(p2p_request_offload_policy(request, numbers));
  WRONG(p2p_request_outcome(request, numbers, text, sizeof text, &n));
  WRONG(p2p_lookup(request, &keys, numbers));
  WRONG(p2p_wait_lookups(request, 1000));
  WRONG(p2p_flush_lookups(tier));
  WRONG(p2p_submit_load(request, 1, &keys, numbers));
  WRONG(p2p_submit_store(request, 1, &keys, numbers));
  WRONG(p2p_poll_finished(tier, &result, sizeof result, 1, &n));
  WRONG(p2p_wait_finished(tier, &result, sizeof result, 1, 1000, &n));
  WRONG(p2p_publish(tier, &keys, numbers));
  WRONG(p2p_unpublish(tier, &keys, numbers));
  WRONG(p2p_serve(tier));
  WRONG(p2p_tier_set_serve_ops(tier, &ops));
  WRONG(p2p_tier_set_serve_ops(tier, NULL));
  WRONG(p2p_peers(tier, &info, sizeof info, 1, &n));
  WRONG(p2p_tier_stats(tier, &stats));
  WRONG(p2p_tier_metrics_text(tier, text, sizeof text, &n));
  CHECK(strstr(p2p_last_error(), "fork") != NULL);
  WRONG(p2p_request_finish(request));
  close_tier(&consumer);
}

static atomic_int stop;

static void *pulls_all_the_time(void *count) {
  while (!atomic_load(&stop)) {
    pull_all(&consumer, producer_name);
    ++*(int *)count;
  }
  return NULL;
}

static void forks_do_not_disturb_the_parent(char *program) {
  pthread_t puller;
  int pulls = 0, forks = 0;
  CHECK(pthread_create(&puller, NULL, pulls_all_the_time, &pulls) == 0);
  for (; forks < 100; ++forks) {
    void (*const lives[])(void *) = {exits, exits_through_atexit, execs};
    CHECK(exit_code_of(child_of(lives[forks % 3], program)) == 0);
  }
  for (int i = 0; i < 3; ++i) CHECK(exit_code_of(child_of(opens_a_tier_and_pulls_from_the_parent, NULL)) == 0);
  atomic_store(&stop, 1);
  CHECK(pthread_join(puller, NULL) == 0);
  CHECK(pulls > 10);
}

static void hear(void *user_data, uint32_t level, const char *target, const char *message) {
  (void)user_data, (void)level, (void)target, (void)message;
}

/* Every lock that is the process's and not a tier's: taken and let go as fast as can be. */
static void *takes_every_lock(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    void *memory = NULL;
    CHECK_OK(p2p_region_alloc(4096, 0, &memory));
    CHECK_OK(p2p_region_free(memory));
    CHECK_OK(p2p_log_set_callback(P2P_LOG_TRACE, hear, NULL, NULL));
    CHECK_OK(p2p_log_init(P2P_LOG_TRACE));
  }
  return NULL;
}

static void takes_them_too(void *unused) {
  void *memory = NULL;
  static struct tier own;
  (void)unused;
  alarm(5);
  CHECK_OK(p2p_region_alloc(4096, 0, &memory));
  CHECK_OK(p2p_region_free(memory));
  CHECK_OK(p2p_log_init(P2P_LOG_INFO));
  open_tier(&own);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_TRACE, hear, NULL, NULL));
  close_tier(&own);
}

static void a_lock_held_by_another_thread_is_free_in_the_child(void) {
  pthread_t holders[2];
  int null = open("/dev/null", O_WRONLY | O_CLOEXEC), before = dup(2);
  /* What is logged as fast as can be, nobody reads. */
  CHECK(null >= 0 && before >= 0 && dup2(null, 2) == 2);
  atomic_store(&stop, 0);
  for (int i = 0; i < 2; ++i) CHECK(pthread_create(&holders[i], NULL, takes_every_lock, NULL) == 0);
  for (int forks = 0; forks < 200; ++forks) {
    int code = exit_code_of(child_of(takes_them_too, NULL));
    if (code != 0) dprintf(before, "child %d: %d\n", forks, code);
    CHECK(code == 0);
  }
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; ++i) CHECK(pthread_join(holders[i], NULL) == 0);
  CHECK(dup2(before, 2) == 2);
}

int main(int count, char **arguments) {
  p2p_request *request;
  if (count > 1) return executed(arguments[1]);
  snprintf(fds_at_start, sizeof fds_at_start, "%d", open_fds());
  open_tier(&producer);
  open_tier(&consumer);
  publish_all(&producer);
  name_of(&producer, producer_name);
  pull_all(&consumer, producer_name);

  request = request_from(&consumer, producer_name);
  CHECK(exit_code_of(child_of(calls_everything, request)) == 0);
  CHECK_OK(p2p_request_finish(request));
  pull_all(&consumer, producer_name);

  forks_do_not_disturb_the_parent(arguments[0]);
  close_tier(&consumer);
  close_tier(&producer);
  a_lock_held_by_another_thread_is_free_in_the_child();
  return 0;
}
