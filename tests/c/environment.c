/* Prints the refusal that a malformed environment variable brings, or "fine". */
#include "check.h"

static char memory[256];

int main(void) {
  p2p_tier_config config;
  p2p_tier *tier = NULL;
  CHECK_OK(p2p_tier_config_init(&config, sizeof config));
  config.base_addr = memory;
  config.num_blocks = 4;
  config.block_len = 64;
  if (p2p_log_init(P2P_LOG_WARN) != P2P_STATUS_OK || p2p_tier_new(&config, &tier) != P2P_STATUS_OK) {
    CHECK(tier == NULL);
    puts(p2p_last_error());
    return 0;
  }
  p2p_tier_free(tier);
  puts("fine");
  return 0;
}
