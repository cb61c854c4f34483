/* Two tiers over NIXL, in a host that has its own signal handlers. Says "no nixl: ..." where there is none. */
#define _GNU_SOURCE
#include "manners/host.h"

enum { SIGNALS = 32 };

static struct sigaction handlers[SIGNALS];

static void look_at_handlers(int compare) {
  for (int number = 1; number < SIGNALS; ++number) {
    struct sigaction now;
    memset(&now, 0, sizeof now);
    CHECK(sigaction(number, NULL, &now) == 0);
    if (compare) {
      CHECK(now.sa_handler == handlers[number].sa_handler && now.sa_flags == handlers[number].sa_flags);
    }
    handlers[number] = now;
  }
}

static void own_handler(int number) { (void)number; }

static p2p_status make(void *memory, p2p_tier **tier_out) {
  p2p_tier_config config;
  CHECK_OK(p2p_tier_config_init(&config, sizeof config));
  config.base_addr = memory;
  config.num_blocks = BLOCKS;
  config.block_len = BLOCK_LEN;
  config.transport = P2P_TRANSPORT_NIXL;
  return p2p_tier_new(&config, tier_out);
}

static p2p_request *request(const p2p_tier *tier, const char *params) {
  p2p_request_options options;
  p2p_request *request = NULL;
  CHECK_OK(p2p_request_options_init(&options, sizeof options));
  options.kv_transfer_params_json.data = params;
  options.kv_transfer_params_json.len = strlen(params);
  CHECK_OK(p2p_request_new(tier, &options, &request));
  return request;
}

static void done(const p2p_tier *tier) {
  p2p_job_result result;
  size_t n = 0;
  CHECK_OK(p2p_wait_finished(tier, &result, sizeof result, 1, 20000, &n));
  CHECK(n == 1 && result.outcome == P2P_OUTCOME_DONE);
}

static void pull(const p2p_tier *producer, const p2p_tier *consumer) {
  const uint32_t blocks[2] = {3, 4}, places[2] = {8, 1};
  p2p_keys keys;
  p2p_request *serves, *pulls;
  char id[264], params[512];
  size_t n;
  keys.data = (const uint8_t *)"key-one.key-two.";
  keys.key_len = 8;
  keys.count = 2;
  CHECK_OK(p2p_tier_local_id(producer, id, sizeof id, &n));
  snprintf(params, sizeof params,
           "{\"remote_prefiller\":{\"kv_request_id\":\"r\",\"remote_host\":\"127.0.0.1\",\"remote_port\":%s}}",
           strrchr(id, ':') + 1);
  pulls = request(consumer, params);
  serves = request(producer, "{\"remote_decoder\":{\"kv_request_id\":\"r\"}}");
  CHECK_OK(p2p_submit_store(serves, 1, &keys, blocks));
  CHECK_OK(p2p_submit_load(pulls, 2, &keys, places));
  done(consumer);
  done(producer);
  CHECK_OK(p2p_request_finish(pulls));
  CHECK_OK(p2p_request_finish(serves));
}

/* Peers are connected and nothing is asked for: no thread may spin. */
static void idle_is_idle(void) {
  const struct timespec settle = {3, 0}, second = {1, 0};
  clock_t before;
  nanosleep(&settle, NULL);
  before = clock();
  nanosleep(&second, NULL);
  CHECK((double)(clock() - before) / CLOCKS_PER_SEC < 0.05);
}

int main(void) {
  void *memory[2] = {NULL, NULL};
  p2p_tier *producer = NULL, *consumer = NULL;
  p2p_status status;
  signal(SIGSEGV, own_handler);
  signal(SIGHUP, own_handler);
  look_at_handlers(0);
  CHECK_OK(p2p_region_alloc(BLOCKS * BLOCK_LEN, 0, &memory[0]));
  CHECK_OK(p2p_region_alloc(BLOCKS * BLOCK_LEN, 0, &memory[1]));
  status = make(memory[0], &producer);
  if (status == P2P_STATUS_TRANSPORT_UNAVAILABLE) {
    printf("no nixl: %s\n", p2p_last_error());
    return 0;
  }
  CHECK_OK(status);
  CHECK_OK(make(memory[1], &consumer));
  memset((char *)memory[0] + 3 * BLOCK_LEN, 3, BLOCK_LEN);
  memset((char *)memory[0] + 4 * BLOCK_LEN, 4, BLOCK_LEN);
  pull(producer, consumer);
  CHECK(memcmp((char *)memory[1] + 8 * BLOCK_LEN, (char *)memory[0] + 3 * BLOCK_LEN, BLOCK_LEN) == 0);
  CHECK(memcmp((char *)memory[1] + 1 * BLOCK_LEN, (char *)memory[0] + 4 * BLOCK_LEN, BLOCK_LEN) == 0);
  look_at_handlers(1);
  CHECK(check_that_library_threads_take_no_signals() > 0);
  idle_is_idle();
  p2p_tier_free(consumer);
  p2p_tier_free(producer);
  look_at_handlers(1);
  CHECK_OK(p2p_region_free(memory[0]));
  CHECK_OK(p2p_region_free(memory[1]));
  puts("fine");
  return 0; /* The libraries that NIXL brought run their destructors after this: they must not crash. */
}
