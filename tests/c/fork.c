/* After fork the child may only abandon what its parent made, and may make tiers of its own. */
#include "check.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static char memory[256];
static char childs_memory[256];

static void child(p2p_tier *tier, p2p_request *request) {
  uint32_t number = 0;
  p2p_tier *own;
  CHECK_STATUS(P2P_STATUS_WRONG_PROCESS, p2p_tier_has_pending_work(tier, &number));
  CHECK(strstr(p2p_last_error(), "fork") != NULL);
  CHECK_STATUS(P2P_STATUS_WRONG_PROCESS, p2p_request_offload_policy(request, &number));
  CHECK_STATUS(P2P_STATUS_WRONG_PROCESS, p2p_request_finish(request));
  p2p_tier_free(tier);
  own = make_tier(childs_memory, sizeof childs_memory);
  CHECK_OK(p2p_tier_has_pending_work(own, &number));
  p2p_tier_free(own);
}

int main(void) {
  p2p_tier *tier = make_tier(memory, sizeof memory);
  p2p_request *request = NULL;
  uint32_t number = 0;
  int status = -1;
  pid_t pid;

  CHECK_OK(p2p_request_new(tier, NULL, &request));
  pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    child(tier, request);
    _exit(0);
  }
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

  CHECK_OK(p2p_tier_has_pending_work(tier, &number));
  CHECK_OK(p2p_request_finish(request));
  p2p_tier_free(tier);
  return 0;
}
