/* What belongs to the whole process is as it was: locale, floating point, umask, working directory, environment,
 * limits, time slack; and nothing is printed that was not asked for. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char **environ;

static struct tier producer, consumer;

struct view {
  char locale[256], folder[512], environment[1 << 16], name[32];
  fenv_t arithmetic;
  int rounding, exceptions, dumpable, nice_value;
  mode_t mask;
  struct rlimit files, stack;
};

static void look(struct view *view) {
  size_t at = 0;
  memset(view, 0, sizeof *view);
  snprintf(view->locale, sizeof view->locale, "%s", setlocale(LC_ALL, NULL));
  CHECK(getcwd(view->folder, sizeof view->folder) != NULL);
  for (char **variable = environ; *variable != NULL; ++variable) {
    at += (size_t)snprintf(view->environment + at, sizeof view->environment - at, "%s\n", *variable);
    CHECK(at < sizeof view->environment);
  }
  CHECK(fegetenv(&view->arithmetic) == 0);
  view->rounding = fegetround();
  view->exceptions = fetestexcept(FE_ALL_EXCEPT);
  view->dumpable = prctl(PR_GET_DUMPABLE);
  view->nice_value = getpriority(PRIO_PROCESS, 0);
  CHECK(prctl(PR_GET_NAME, view->name) == 0);
  view->mask = umask(0);
  umask(view->mask);
  CHECK(getrlimit(RLIMIT_NOFILE, &view->files) == 0 && getrlimit(RLIMIT_STACK, &view->stack) == 0);
}

static void check_unchanged(const struct view *before) {
  struct view now;
  look(&now);
  CHECK(strcmp(before->locale, now.locale) == 0);
  CHECK(strcmp(before->folder, now.folder) == 0);
  CHECK(strcmp(before->environment, now.environment) == 0);
  CHECK(strcmp(before->name, now.name) == 0);
  CHECK(before->rounding == now.rounding && before->exceptions == now.exceptions);
#ifdef __x86_64__
  CHECK(before->arithmetic.__mxcsr == now.arithmetic.__mxcsr);
#endif
  CHECK(before->dumpable == now.dumpable && before->nice_value == now.nice_value);
  CHECK(before->mask == now.mask);
  CHECK(before->files.rlim_cur == now.files.rlim_cur && before->stack.rlim_cur == now.stack.rlim_cur);
}

/* With a decimal comma, rounding down and an odd mask: nothing of the library may depend on them either. */
static void make_the_host_unusual(void) {
  const char *const with_comma[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"};
  for (size_t i = 0; i < 3 && setlocale(LC_ALL, with_comma[i]) == NULL; ++i) {
  }
  umask(0137);
  CHECK(fesetround(FE_DOWNWARD) == 0);
  CHECK(feclearexcept(FE_ALL_EXCEPT) == 0);
}

int main(void) {
  struct view before;
  char name[264];
  int caught[2], out = dup(1), err = dup(2);
  char word;
  CHECK(out >= 0 && err >= 0 && pipe2(caught, O_NONBLOCK) == 0);
  CHECK(dup2(caught[1], 1) == 1 && dup2(caught[1], 2) == 2);
  make_the_host_unusual();
  look(&before);

  open_tier(&producer);
  open_tier(&consumer);
  check_unchanged(&before);
  publish_all(&producer);
  name_of(&producer, name);
  pull_all(&consumer, name);
  CHECK(p2p_serve(NULL) == P2P_STATUS_INVALID_ARGUMENT);
  check_unchanged(&before);
  close_tier(&producer);
  close_tier(&consumer);
  check_unchanged(&before);

  CHECK(dup2(out, 1) == 1 && dup2(err, 2) == 2);
  CHECK(read(caught[0], &word, 1) == -1 && errno == EAGAIN);
  return 0;
}
