/* A host that loads the library late, unloads it and loads it again, maybe two copies of it. argv[1] is the library,
 * argv[2] another copy of its file. Not linked with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include "p2pkv.h"

/* The functions that the rest of this program means by their names: those of one copy of the library. */
struct api {
  void *handle;
  __typeof__(&p2p_last_error) last_error;
  __typeof__(&p2p_status_name) status_name;
  __typeof__(&p2p_tier_config_init) tier_config_init;
  __typeof__(&p2p_tier_new) tier_new;
  __typeof__(&p2p_tier_free) tier_free;
  __typeof__(&p2p_tier_local_id) tier_local_id;
  __typeof__(&p2p_publish) publish;
  __typeof__(&p2p_request_options_init) request_options_init;
  __typeof__(&p2p_request_new) request_new;
  __typeof__(&p2p_request_finish) request_finish;
  __typeof__(&p2p_lookup) lookup;
  __typeof__(&p2p_wait_lookups) wait_lookups;
  __typeof__(&p2p_submit_load) submit_load;
  __typeof__(&p2p_wait_finished) wait_finished;
  __typeof__(&p2p_log_set_callback) log_set_callback;
};

static struct api api;

#define p2p_last_error api.last_error
#define p2p_status_name api.status_name
#define p2p_tier_config_init api.tier_config_init
#define p2p_tier_new api.tier_new
#define p2p_tier_free api.tier_free
#define p2p_tier_local_id api.tier_local_id
#define p2p_publish api.publish
#define p2p_request_options_init api.request_options_init
#define p2p_request_new api.request_new
#define p2p_request_finish api.request_finish
#define p2p_lookup api.lookup
#define p2p_wait_lookups api.wait_lookups
#define p2p_submit_load api.submit_load
#define p2p_wait_finished api.wait_finished
#define p2p_log_set_callback api.log_set_callback

#include "host.h"

static void *loaded(void *handle) {
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  if (handle == NULL) exit(1);
  return handle;
}

static void use(void *handle) {
  api.handle = loaded(handle);
#define FIND(name) *(void **)&api.name = loaded(dlsym(handle, "p2p_" #name))
  FIND(last_error);
  FIND(status_name);
  FIND(tier_config_init);
  FIND(tier_new);
  FIND(tier_free);
  FIND(tier_local_id);
  FIND(publish);
  FIND(request_options_init);
  FIND(request_new);
  FIND(request_finish);
  FIND(lookup);
  FIND(wait_lookups);
  FIND(submit_load);
  FIND(wait_finished);
  FIND(log_set_callback);
}

/* Begins before the library is loaded first and ends after it was let go last, with a last error of its own. */
static atomic_int stop, used;

static void *lives_through_it_all(void *unused) {
  (void)unused;
  while (!atomic_load(&used)) pause_ms(1);
  CHECK_STATUS(P2P_STATUS_INVALID_ARGUMENT, p2p_tier_config_init(NULL, 0));
  while (!atomic_load(&stop)) pause_ms(1);
  return NULL;
}

static void one_use(const char *path) {
  static struct tier producer, consumer;
  char name[264];
  use(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  open_tier(&producer);
  open_tier(&consumer);
  publish_all(&producer);
  name_of(&producer, name);
  pull_all(&consumer, name);
  close_tier(&consumer);
  close_tier(&producer);
  CHECK(dlclose(api.handle) == 0);
}

static void loading_again_and_again(const char *path) {
  pthread_t thread;
  int fds = 0;
  long before = 0;
  CHECK(pthread_create(&thread, NULL, lives_through_it_all, NULL) == 0);
  for (int i = 0; i < 100; ++i) {
    one_use(path);
    atomic_store(&used, 1);
    if (i == 20) before = resident_kib();
    if (i == 0) fds = open_fds();
    CHECK(open_fds() == fds);
  }
  CHECK(resident_kib() < before + 4096);
  wait_for_threads(2);
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
}

/* dlclose with tiers that live: they go on, and are found again by the next dlopen. */
static void letting_go_of_a_live_tier(const char *path) {
  static struct tier producer, consumer;
  char name[264];
  use(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  open_tier(&producer);
  open_tier(&consumer);
  publish_all(&producer);
  name_of(&producer, name);
  for (int i = 0; i < 100; ++i) {
    CHECK(dlclose(api.handle) == 0);
    if (i % 10 == 0) pull_all(&consumer, name);
    use(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  }
  pull_all(&consumer, name);
  close_tier(&consumer);
  close_tier(&producer);
}

static void count_call(void *calls, uint32_t level, const char *target, const char *message) {
  (void)level, (void)target, (void)message;
  atomic_fetch_add((atomic_int *)calls, 1);
}

/* Two copies know nothing of one another, and pull from one another as two processes do. */
static void two_copies(void *first, void *second) {
  static struct tier producer, consumer;
  atomic_int heard[2] = {0, 0};
  struct api one, other;
  char name[264];
  use(first);
  one = api;
  CHECK_OK(p2p_log_set_callback(P2P_LOG_TRACE, count_call, &heard[0], NULL));
  open_tier(&producer);
  publish_all(&producer);
  name_of(&producer, name);
  use(second);
  other = api;
  CHECK(one.tier_new != other.tier_new);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_TRACE, count_call, &heard[1], NULL));
  open_tier(&consumer);
  pull_all(&consumer, name);
  close_tier(&consumer);
  CHECK(atomic_load(&heard[0]) > 0 && atomic_load(&heard[1]) > 0);
  CHECK_OK(p2p_log_set_callback(P2P_LOG_OFF, NULL, NULL, NULL));
  api = one;
  CHECK_OK(p2p_log_set_callback(P2P_LOG_OFF, NULL, NULL, NULL));
  close_tier(&producer);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  loading_again_and_again(arguments[1]);
  letting_go_of_a_live_tier(arguments[1]);
  two_copies(dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL), dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL));
  two_copies(dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL), dlmopen(LM_ID_NEWLM, arguments[2], RTLD_NOW));
  return 0;
}
