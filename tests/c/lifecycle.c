/* A tier from its region to its end, alone in the world. */
#include "check.h"

#include <fcntl.h>

static int drops;

static void answer(void *user_data, uint64_t serve_id, const p2p_keys *keys, uint32_t *states_out) {
  (void)user_data, (void)serve_id, (void)keys, (void)states_out;
}

static void count_drop(void *user_data) { ++*(int *)user_data; }

int main(void) {
  void *memory = NULL;
  p2p_tier *tier;
  p2p_request *request = NULL;
  p2p_request_options options;
  p2p_serve_ops ops = {0};
  p2p_tier_statistics stats = {0};
  p2p_job_result results[4];
  char id[264];
  size_t n = 0;
  uint32_t number = 7;
  int32_t fd = -1;

  CHECK_OK(p2p_region_alloc(1 << 16, 0, &memory));
  tier = make_tier(memory, 1 << 16);

  CHECK_OK(p2p_tier_local_id(tier, id, sizeof id, &n));
  CHECK(n == strlen(id) && strncmp(id, "127.0.0.1:", 10) == 0);
  CHECK_OK(p2p_tier_event_fd(tier, &fd));
  CHECK(fd >= 0 && fcntl(fd, F_GETFD) != -1);
  CHECK_OK(p2p_tier_has_pending_work(tier, &number));
  CHECK(number == 0);
  stats.struct_size = sizeof stats;
  CHECK_OK(p2p_tier_stats(tier, &stats));
  CHECK(stats.struct_size == sizeof stats && stats.loads_live == 0);
  CHECK_OK(p2p_poll_finished(tier, results, sizeof results[0], 4, &n));
  CHECK(n == 0);
  CHECK_STATUS(P2P_STATUS_TIMED_OUT, p2p_wait_finished(tier, results, sizeof results[0], 4, 10, &n));
  CHECK(n == 0);

  ops.struct_size = sizeof ops;
  ops.user_data = &drops;
  ops.lookup = answer;
  ops.drop = count_drop;
  CHECK_OK(p2p_tier_set_serve_ops(tier, &ops));
  CHECK(drops == 0);
  CHECK_OK(p2p_tier_set_serve_ops(tier, &ops));
  CHECK(drops == 1);
  ops.flags = P2P_SERVE_ON_PROGRESS_THREAD;
  CHECK_OK(p2p_tier_set_serve_ops(tier, &ops));

  CHECK_OK(p2p_request_options_init(&options, sizeof options));
  CHECK_OK(p2p_request_new(tier, &options, &request));
  CHECK_OK(p2p_request_offload_policy(request, &number));
  CHECK(number == P2P_OFFLOAD_CHUNK_LEVEL);

  CHECK_OK(p2p_tier_drain(tier, 1000));
  p2p_tier_free(tier);
  CHECK(drops == 3);
  CHECK_STATUS(P2P_STATUS_SHUT_DOWN, p2p_request_offload_policy(request, &number));
  CHECK_STATUS(P2P_STATUS_SHUT_DOWN, p2p_request_finish(request));
  CHECK_OK(p2p_region_free(memory));
  CHECK_STATUS(P2P_STATUS_INVALID_ARGUMENT, p2p_region_free(memory));
  return 0;
}
