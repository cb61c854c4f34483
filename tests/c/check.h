/* What the test programs check with. */
#ifndef P2PKV_TESTS_CHECK_H
#define P2PKV_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "p2pkv.h"

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition, p2p_last_error()); \
      exit(1); \
    } \
  } while (0)

#define CHECK_STATUS(expected, call) \
  do { \
    p2p_status status_ = (call); \
    if (status_ != (expected)) { \
      fprintf(stderr, "%s:%d: %s gave %s, expected %s (last error: %s)\n", __FILE__, __LINE__, #call, \
              p2p_status_name(status_), p2p_status_name(expected), p2p_last_error()); \
      exit(1); \
    } \
  } while (0)

#define CHECK_OK(call) CHECK_STATUS(P2P_STATUS_OK, call)

/* A tier on loopback over `bytes` of memory in blocks of 64 bytes. */
static inline p2p_tier *make_tier(void *memory, size_t bytes) {
  p2p_tier_config config;
  p2p_tier *tier = NULL;
  CHECK_OK(p2p_tier_config_init(&config, sizeof config));
  config.base_addr = memory;
  config.num_blocks = bytes / 64;
  config.block_len = 64;
  CHECK_OK(p2p_tier_new(&config, &tier));
  CHECK(tier != NULL);
  return tier;
}

#endif
