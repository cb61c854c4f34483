/* Each thread has its own last error; it stays until the next failing call of that thread. */
#include "check.h"

#include <pthread.h>

static void *other_thread(void *unused) {
  uint32_t number = 0;
  (void)unused;
  CHECK(p2p_last_error()[0] == '\0');
  CHECK_STATUS(P2P_STATUS_INVALID_ARGUMENT, p2p_request_offload_policy(NULL, &number));
  CHECK(strstr(p2p_last_error(), "p2p_request_offload_policy") != NULL);
  return NULL;
}

int main(void) {
  p2p_tier_config config;
  pthread_t thread;
  const char *mine;

  CHECK_STATUS(P2P_STATUS_INVALID_ARGUMENT, p2p_serve(NULL));
  mine = p2p_last_error();
  CHECK(strcmp(mine, "p2p_serve: tier is NULL") == 0);
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(p2p_tier_config_init(&config, sizeof config));
  CHECK(p2p_last_error() == mine && strcmp(mine, "p2p_serve: tier is NULL") == 0);
  return 0;
}
