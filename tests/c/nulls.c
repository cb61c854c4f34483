/* Every function with every NULL: refused with a status and a sentence that names the parameter, or fine where the
 * header says so. */
#include "check.h"

/* The call is refused, and the message names function and parameter. */
#define REFUSED(function, parameter, ...) \
  do { \
    CHECK_STATUS(P2P_STATUS_INVALID_ARGUMENT, function(__VA_ARGS__)); \
    CHECK(strncmp(p2p_last_error(), #function ": ", sizeof #function + 1) == 0); \
    CHECK(strstr(p2p_last_error(), parameter) != NULL); \
  } while (0)

static char memory[256];

static void without_handle(void) {
  p2p_tier_config config;
  p2p_request_options options;
  p2p_tier *tier = NULL;

  CHECK(p2p_version() != NULL && p2p_version()[0] != '\0');
  CHECK(p2p_abi_version() == P2P_ABI_VERSION);
  CHECK(p2p_features() & P2P_FEATURE_TCP);
  CHECK(strcmp(p2p_status_name(P2P_STATUS_INVALID_ARGUMENT), "INVALID_ARGUMENT") == 0);
  CHECK(strcmp(p2p_status_name(12345), "UNKNOWN") == 0);
  CHECK(strcmp(p2p_status_name(INT32_MIN), "UNKNOWN") == 0);
  CHECK(strcmp(p2p_outcome_name(P2P_OUTCOME_NO_PEER), "NO_PEER") == 0);
  CHECK(strcmp(p2p_outcome_name(UINT32_MAX), "UNKNOWN") == 0);
  CHECK(p2p_last_error() != NULL && p2p_last_error()[0] == '\0');

  CHECK_OK(p2p_log_init(P2P_LOG_WARN));
  CHECK_OK(p2p_log_set_callback(P2P_LOG_WARN, NULL, NULL, NULL));
  REFUSED(p2p_log_init, "level", 6);
  REFUSED(p2p_log_set_callback, "level", 6, NULL, NULL, NULL);

  REFUSED(p2p_tier_config_init, "config_out", NULL, sizeof config);
  REFUSED(p2p_tier_config_init, "config_size", &config, 0);
  REFUSED(p2p_request_options_init, "options_out", NULL, sizeof options);
  REFUSED(p2p_request_options_init, "options_size", &options, 0);

  CHECK_OK(p2p_tier_config_init(&config, sizeof config));
  REFUSED(p2p_tier_new, "config", NULL, &tier);
  REFUSED(p2p_tier_new, "tier_out", &config, NULL);
  REFUSED(p2p_tier_new, "config.base_addr", &config, &tier);
  config.base_addr = memory;
  REFUSED(p2p_tier_new, "config.num_blocks", &config, &tier);
  config.num_blocks = 4;
  REFUSED(p2p_tier_new, "config.block_len", &config, &tier);
  config.block_len = 64;
  config.host.len = 4;
  REFUSED(p2p_tier_new, "config.host", &config, &tier);
  CHECK(tier == NULL);

  REFUSED(p2p_region_alloc, "base_addr_out", 4096, 0, NULL);
  CHECK_OK(p2p_region_free(NULL));
  p2p_tier_free(NULL);
  CHECK_OK(p2p_request_finish(NULL));
}

static void with_null_handle(void) {
  p2p_keys keys = {NULL, 0, 0};
  p2p_job_result result;
  p2p_peer_info info;
  p2p_tier_statistics stats = {0};
  p2p_request *request = NULL;
  size_t n = 0;
  uint32_t number = 0;
  int32_t fd = 0;
  char text[8];

  REFUSED(p2p_tier_drain, "tier", NULL, 0);
  REFUSED(p2p_tier_event_fd, "tier", NULL, &fd);
  REFUSED(p2p_tier_local_id, "tier", NULL, text, sizeof text, &n);
  REFUSED(p2p_tier_has_pending_work, "tier", NULL, &number);
  REFUSED(p2p_request_new, "tier", NULL, NULL, &request);
  REFUSED(p2p_request_offload_policy, "request", NULL, &number);
  REFUSED(p2p_request_set_timeouts, "request", NULL, 0, 0);
  REFUSED(p2p_request_outcome, "request", NULL, &number, text, sizeof text, &n);
  REFUSED(p2p_lookup, "request", NULL, &keys, &number);
  REFUSED(p2p_wait_lookups, "request", NULL, 0);
  REFUSED(p2p_flush_lookups, "tier", NULL);
  REFUSED(p2p_submit_load, "request", NULL, 1, &keys, &number);
  REFUSED(p2p_submit_store, "request", NULL, 1, &keys, &number);
  REFUSED(p2p_poll_finished, "tier", NULL, &result, sizeof result, 1, &n);
  REFUSED(p2p_wait_finished, "tier", NULL, &result, sizeof result, 1, 0, &n);
  REFUSED(p2p_publish, "tier", NULL, &keys, &number);
  REFUSED(p2p_unpublish, "tier", NULL, &keys, &number);
  REFUSED(p2p_serve, "tier", NULL);
  REFUSED(p2p_tier_set_serve_ops, "tier", NULL, NULL);
  REFUSED(p2p_peers, "tier", NULL, &info, sizeof info, 1, &n);
  REFUSED(p2p_tier_stats, "tier", NULL, &stats);
  REFUSED(p2p_tier_metrics_text, "tier", NULL, text, sizeof text, &n);
}

static void with_tier(const p2p_tier *tier) {
  const uint8_t key[4] = {1, 2, 3, 4};
  p2p_keys keys = {key, sizeof key, 1};
  p2p_keys no_data = {NULL, sizeof key, 1};
  p2p_keys no_keys = {NULL, 0, 0};
  p2p_job_result result;
  p2p_peer_info info;
  p2p_tier_statistics stats = {0};
  p2p_serve_ops ops = {0};
  p2p_request *request = NULL;
  size_t n = 99;
  uint32_t number = 0;
  char text[8];

  REFUSED(p2p_tier_event_fd, "fd_out", tier, NULL);
  REFUSED(p2p_tier_local_id, "buf", tier, NULL, 8, &n);
  REFUSED(p2p_tier_local_id, "len_out", tier, text, sizeof text, NULL);
  CHECK_STATUS(P2P_STATUS_TRUNCATED, p2p_tier_local_id(tier, NULL, 0, &n));
  REFUSED(p2p_tier_has_pending_work, "pending_out", tier, NULL);

  n = 99;
  REFUSED(p2p_poll_finished, "results_out", tier, NULL, sizeof result, 1, &n);
  REFUSED(p2p_poll_finished, "result_size", tier, &result, sizeof result - 1, 1, &n);
  REFUSED(p2p_poll_finished, "n_out", tier, &result, sizeof result, 1, NULL);
  REFUSED(p2p_poll_finished, "results_out", tier, &result, sizeof result, SIZE_MAX, &n);
  CHECK(n == 99);
  CHECK_OK(p2p_poll_finished(tier, NULL, sizeof result, 0, &n));
  CHECK(n == 0);
  REFUSED(p2p_wait_finished, "results_out", tier, NULL, sizeof result, 1, 0, &n);
  REFUSED(p2p_wait_finished, "result_size", tier, &result, 0, 1, 0, &n);
  REFUSED(p2p_wait_finished, "n_out", tier, &result, sizeof result, 1, 0, NULL);
  REFUSED(p2p_wait_finished, "capacity", tier, NULL, sizeof result, 0, 0, &n);

  REFUSED(p2p_publish, "keys", tier, NULL, &number);
  REFUSED(p2p_publish, "keys.data", tier, &no_data, &number);
  REFUSED(p2p_publish, "block_indexes", tier, &keys, NULL);
  CHECK_OK(p2p_publish(tier, &no_keys, NULL));
  REFUSED(p2p_unpublish, "keys", tier, NULL, &number);
  REFUSED(p2p_unpublish, "keys.data", tier, &no_data, &number);
  CHECK_OK(p2p_unpublish(tier, &keys, NULL));

  CHECK_OK(p2p_tier_set_serve_ops(tier, NULL));
  REFUSED(p2p_tier_set_serve_ops, "ops.struct_size", tier, &ops);
  ops.struct_size = sizeof ops;
  REFUSED(p2p_tier_set_serve_ops, "ops.lookup", tier, &ops);
  ops.flags = 6;
  REFUSED(p2p_tier_set_serve_ops, "ops.flags is 0x6", tier, &ops);
  ops.flags = 0;
  ops.reserved = 1;
  REFUSED(p2p_tier_set_serve_ops, "ops.reserved", tier, &ops);

  REFUSED(p2p_peers, "infos_out", tier, NULL, sizeof info, 1, &n);
  REFUSED(p2p_peers, "info_size", tier, &info, 1, 1, &n);
  REFUSED(p2p_peers, "n_out", tier, &info, sizeof info, 1, NULL);
  CHECK_OK(p2p_peers(tier, NULL, sizeof info, 0, &n));
  REFUSED(p2p_tier_stats, "stats_out", tier, NULL);
  REFUSED(p2p_tier_stats, "stats_out.struct_size", tier, &stats);
  REFUSED(p2p_tier_metrics_text, "buf", tier, NULL, 8, &n);
  REFUSED(p2p_tier_metrics_text, "len_out", tier, text, sizeof text, NULL);
  CHECK_STATUS(P2P_STATUS_TRUNCATED, p2p_tier_metrics_text(tier, text, 8, &n));

  REFUSED(p2p_request_new, "request_out", tier, NULL, NULL);
  CHECK_OK(p2p_request_new(tier, NULL, &request));
  REFUSED(p2p_request_offload_policy, "policy_out", request, NULL);
  REFUSED(p2p_lookup, "keys", request, NULL, &number);
  REFUSED(p2p_lookup, "keys.data", request, &no_data, &number);
  REFUSED(p2p_lookup, "states_out", request, &keys, NULL);
  CHECK_OK(p2p_lookup(request, &no_keys, NULL));
  REFUSED(p2p_submit_load, "keys", request, 1, NULL, &number);
  REFUSED(p2p_submit_load, "keys.data", request, 1, &no_data, &number);
  REFUSED(p2p_submit_load, "block_indexes", request, 1, &keys, NULL);
  REFUSED(p2p_submit_store, "keys", request, 1, NULL, &number);
  REFUSED(p2p_submit_store, "keys.data", request, 1, &no_data, &number);
  REFUSED(p2p_submit_store, "block_indexes", request, 1, &keys, NULL);
  CHECK_OK(p2p_flush_lookups(tier));
  CHECK_OK(p2p_serve(tier));
  CHECK_OK(p2p_tier_drain(tier, 0));
  CHECK_OK(p2p_request_finish(request));
}

int main(void) {
  p2p_tier *tier;
  without_handle();
  with_null_handle();
  tier = make_tier(memory, sizeof memory);
  with_tier(tier);
  p2p_tier_free(tier);
  return 0;
}
