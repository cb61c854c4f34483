/* A host with signal handlers, masks and alternative stacks of its own: the library leaves them alone, its threads
 * take no signals, and a peer that goes away in the middle of a write raises none. */
#define _GNU_SOURCE
#include "host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { SIGNALS = 65 };

struct view {
  struct sigaction actions[SIGNALS];
  sigset_t mask;
  stack_t stack;
};

static struct tier producer, consumer;
static char producer_name[264];
static atomic_int on_wrong_thread, delivered;
static _Thread_local int is_host_thread;

static void look(struct view *view) {
  memset(view, 0, sizeof *view);
  /* The C library keeps 32 and 33 to itself. */
  for (int number = 1; number < SIGNALS; ++number) {
    if (number != 32 && number != 33) CHECK(sigaction(number, NULL, &view->actions[number]) == 0);
  }
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &view->mask) == 0);
  CHECK(sigaltstack(NULL, &view->stack) == 0);
}

static void check_unchanged(const struct view *before) {
  struct view now;
  look(&now);
  for (int number = 1; number < SIGNALS; ++number) {
    const struct sigaction *was = &before->actions[number], *is = &now.actions[number];
    CHECK(was->sa_handler == is->sa_handler && was->sa_flags == is->sa_flags);
    for (int other = 1; other < SIGNALS; ++other) {
      CHECK(sigismember(&was->sa_mask, other) == sigismember(&is->sa_mask, other));
    }
    CHECK(sigismember(&before->mask, number) == sigismember(&now.mask, number));
  }
  CHECK(before->stack.ss_sp == now.stack.ss_sp && before->stack.ss_size == now.stack.ss_size);
  CHECK(before->stack.ss_flags == now.stack.ss_flags);
}

static void own_handler(int number) {
  (void)number;
  atomic_fetch_add(&delivered, 1);
  if (!is_host_thread) atomic_fetch_add(&on_wrong_thread, 1);
}

static void set_up_the_host(void) {
  static char stack[1 << 16];
  const int handled[] = {SIGHUP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGUSR1, SIGCHLD, SIGRTMIN + 3};
  stack_t own = {0};
  sigset_t blocked;
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  CHECK(sigaltstack(&own, NULL) == 0);
  for (size_t i = 0; i < sizeof handled / sizeof handled[0]; ++i) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = own_handler;
    action.sa_flags = SA_ONSTACK | (i % 2 ? SA_RESTART : 0);
    sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(sigaction(handled[i], &action, NULL) == 0);
  }
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGWINCH);
  CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
}

/* Names are resolved by threads of their own, started when the first one comes. */
static void resolve_a_name(void) {
  p2p_request *request = request_from(&consumer, "localhost:1");
  double end = seconds() + 5;
  while (live_threads() < 1 + 2 * 4 + 1 && seconds() < end) pause_ms(1);
  CHECK_OK(p2p_request_finish(request));
}

static void *storm(void *pid) {
  is_host_thread = 1;
  for (int i = 0; i < 500; ++i) {
    kill(*(pid_t *)pid, i % 2 ? SIGUSR1 : SIGHUP);
    pause_ms(1);
  }
  return NULL;
}

static void signals_reach_only_the_host_and_disturb_no_pull(void) {
  pthread_t thread;
  pid_t self = getpid();
  double end = seconds() + 0.5;
  CHECK(pthread_create(&thread, NULL, storm, &self) == 0);
  while (seconds() < end) pull_all(&consumer, producer_name);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(atomic_load(&delivered) > 0 && atomic_load(&on_wrong_thread) == 0);
}

/* Connects and hangs up with a reset, so that what is written to it fails. */
static void knock_and_leave(int port, const char *words, size_t len) {
  const struct linger reset = {1, 0};
  struct sockaddr_in address;
  int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(socket_fd >= 0 && connect(socket_fd, (struct sockaddr *)&address, sizeof address) == 0);
  CHECK(send(socket_fd, words, len, MSG_NOSIGNAL) == (ssize_t)len);
  CHECK(setsockopt(socket_fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
  close(socket_fd);
}

/* A consumer that is killed in the middle of what is written to it. */
static void consumer_process(int ready) {
  static struct tier own;
  open_tier(&own);
  pull_all(&own, producer_name);
  CHECK(write(ready, "r", 1) == 1);
  for (;;) pull_all(&own, producer_name);
}

static void peers_that_vanish_raise_no_sigpipe(void) {
  struct sigaction sigpipe;
  char word;
  CHECK(sigaction(SIGPIPE, NULL, &sigpipe) == 0 && sigpipe.sa_handler == SIG_DFL);
  for (int i = 0; i < 20; ++i) {
    knock_and_leave(atoi(strrchr(producer_name, ':') + 1), "\xff\0\0\0\0\0\0\0\x01\x7f\x03", 11);
  }
  for (int i = 0; i < 5; ++i) {
    int ready[2];
    pid_t pid;
    CHECK(pipe(ready) == 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) consumer_process(ready[1]);
    close(ready[1]);
    CHECK(read(ready[0], &word, 1) == 1);
    pause_ms(3 * i);
    kill(pid, SIGKILL);
    CHECK(exit_code_of(pid) == 1000 + SIGKILL);
    close(ready[0]);
  }
  pull_all(&consumer, producer_name);
}

/* A log that nobody reads is lost; it does not end the host, and no signal is left over. */
static void a_broken_stderr_raises_no_sigpipe(void) {
  int ends[2], before = dup(2);
  sigset_t pending;
  CHECK(pipe(ends) == 0 && before >= 0 && dup2(ends[1], 2) == 2);
  close(ends[0]);
  close(ends[1]);
  CHECK_OK(p2p_log_init(P2P_LOG_TRACE));
  pull_all(&consumer, producer_name);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_OFF, NULL, NULL, NULL));
  CHECK(dup2(before, 2) == 2);
  close(before);
  CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 0);
}

int main(void) {
  struct view before;
  is_host_thread = 1;
  set_up_the_host();
  look(&before);
  open_tier(&producer);
  open_tier(&consumer);
  check_unchanged(&before);
  publish_all(&producer);
  name_of(&producer, producer_name);
  pull_all(&consumer, producer_name);
  resolve_a_name();
  check_unchanged(&before);
  CHECK(check_that_library_threads_take_no_signals() >= 2 * 4 + 1);
  signals_reach_only_the_host_and_disturb_no_pull();
  peers_that_vanish_raise_no_sigpipe();
  a_broken_stderr_raises_no_sigpipe();
  close_tier(&consumer);
  close_tier(&producer);
  check_unchanged(&before);
  return 0;
}
