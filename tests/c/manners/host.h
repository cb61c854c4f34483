/* A host of the library: two tiers that pull from one another, and what can be seen of the process around them. */
#ifndef P2PKV_TESTS_HOST_H
#define P2PKV_TESTS_HOST_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before anything is included"
#endif

#include "../check.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 16, BLOCK_LEN = 4096, KEY_LEN = 8, PATIENCE_MS = 20000 };

struct tier {
  uint8_t memory[BLOCKS][BLOCK_LEN];
  p2p_tier *tier;
};

static inline p2p_str text_of(const char *text) {
  p2p_str string;
  string.data = text;
  string.len = P2P_NUL_TERMINATED;
  return string;
}

/* Over TCP, also where NIXL is installed: what is tested here is the library's own. */
static inline p2p_status try_open(struct tier *tier) {
  p2p_tier_config config;
  CHECK_OK(p2p_tier_config_init(&config, sizeof config));
  config.base_addr = tier->memory;
  config.num_blocks = BLOCKS;
  config.block_len = BLOCK_LEN;
  config.transport = P2P_TRANSPORT_TCP;
  return p2p_tier_new(&config, &tier->tier);
}

static inline void open_tier(struct tier *tier) { CHECK_OK(try_open(tier)); }

static inline void close_tier(struct tier *tier) {
  p2p_tier_free(tier->tier);
  tier->tier = NULL;
}

static inline p2p_keys all_keys(uint8_t bytes[BLOCKS][KEY_LEN]) {
  p2p_keys keys;
  for (int i = 0; i < BLOCKS; ++i) memset(bytes[i], i + 1, KEY_LEN);
  keys.data = bytes[0];
  keys.key_len = KEY_LEN;
  keys.count = BLOCKS;
  return keys;
}

static inline uint8_t byte_of(int block) { return (uint8_t)(block * 7 + 1); }

/* Every block of the tier is there to be pulled. */
static inline void publish_all(struct tier *tier) {
  uint8_t bytes[BLOCKS][KEY_LEN];
  uint32_t blocks[BLOCKS];
  p2p_keys keys = all_keys(bytes);
  for (int i = 0; i < BLOCKS; ++i) {
    blocks[i] = (uint32_t)i;
    memset(tier->memory[i], byte_of(i), BLOCK_LEN);
  }
  CHECK_OK(p2p_publish(tier->tier, &keys, blocks));
}

static inline void name_of(const struct tier *tier, char name[264]) {
  size_t n;
  CHECK_OK(p2p_tier_local_id(tier->tier, name, 264, &n));
}

static inline p2p_request *request_from(const struct tier *consumer, const char *producer) {
  static atomic_uint counter;
  char params[512], host[264];
  p2p_request_options options;
  p2p_request *request = NULL;
  char *colon;
  snprintf(host, sizeof host, "%s", producer);
  colon = strrchr(host, ':');
  CHECK(colon != NULL);
  *colon = '\0';
  snprintf(params, sizeof params,
           "{\"remote_kv_source\":{\"kv_request_id\":\"%ld-%u\",\"remote_host\":\"%s\",\"remote_port\":%s}}",
           (long)getpid(), atomic_fetch_add(&counter, 1), host, colon + 1);
  CHECK_OK(p2p_request_options_init(&options, sizeof options));
  options.kv_transfer_params_json = text_of(params);
  CHECK_OK(p2p_request_new(consumer->tier, &options, &request));
  return request;
}

/* Pulls every block of the tier called `producer`. The right bytes are there afterwards, or the program ends. */
static inline void pull_all(struct tier *consumer, const char *producer) {
  uint8_t bytes[BLOCKS][KEY_LEN];
  uint32_t blocks[BLOCKS], states[BLOCKS];
  p2p_keys keys = all_keys(bytes);
  p2p_request *request = request_from(consumer, producer);
  p2p_job_result result;
  size_t n = 0;
  memset(consumer->memory, 0, sizeof consumer->memory);
  CHECK_OK(p2p_lookup(request, &keys, states));
  CHECK_OK(p2p_wait_lookups(request, PATIENCE_MS));
  CHECK_OK(p2p_lookup(request, &keys, states));
  for (int i = 0; i < BLOCKS; ++i) {
    CHECK(states[i] == P2P_LOOKUP_HIT);
    blocks[i] = (uint32_t)(BLOCKS - 1 - i);
  }
  CHECK_OK(p2p_submit_load(request, 1, &keys, blocks));
  CHECK_OK(p2p_wait_finished(consumer->tier, &result, sizeof result, 1, PATIENCE_MS, &n));
  CHECK(n == 1 && result.outcome == P2P_OUTCOME_DONE);
  CHECK_OK(p2p_request_finish(request));
  for (int i = 0; i < BLOCKS; ++i) {
    const uint8_t *block = consumer->memory[BLOCKS - 1 - i];
    for (int at = 0; at < BLOCK_LEN; ++at) CHECK(block[at] == byte_of(i));
  }
}

/* Entries of a folder, without its dots. */
static inline int entries(const char *folder) {
  DIR *directory = opendir(folder);
  struct dirent *entry;
  int count = 0;
  CHECK(directory != NULL);
  while ((entry = readdir(directory)) != NULL) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

/* The folder itself is open while it is read, each time. */
static inline int open_fds(void) { return entries("/proc/self/fd"); }

static inline int live_threads(void) { return entries("/proc/self/task"); }

static inline long resident_kib(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static inline double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void pause_ms(long ms) {
  struct timespec span = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&span, NULL);
}

/* Threads that were joined or told to end leave /proc a moment later: waits until no more than `most` are left. */
static inline void wait_for_threads(int most) {
  double end = seconds() + 5;
  while (live_threads() > most && seconds() < end) pause_ms(5);
  CHECK(live_threads() <= most);
}

static inline unsigned long long blocked_on(const char *task) {
  char path[300], line[256];
  unsigned long long mask = 0;
  int found = 0;
  FILE *file;
  snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
  file = fopen(path, "r");
  if (file == NULL) return ~0ull; /* Ended meanwhile. */
  while (fgets(line, sizeof line, file) != NULL) found |= sscanf(line, "SigBlk: %llx", &mask) == 1;
  fclose(file);
  CHECK(found);
  return mask;
}

/* All but SIGKILL and SIGSTOP, which nobody can block, and the two of the C library. Only for a host with one thread. */
static inline int check_that_library_threads_take_no_signals(void) {
  const unsigned long long all = ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 1ull << 31 | 1ull << 32);
  DIR *tasks = opendir("/proc/self/task");
  struct dirent *task;
  int threads = 0;
  CHECK(tasks != NULL);
  while ((task = readdir(tasks)) != NULL) {
    if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
    if ((blocked_on(task->d_name) & all) != all) fprintf(stderr, "thread %s takes signals\n", task->d_name);
    CHECK((blocked_on(task->d_name) & all) == all);
    ++threads;
  }
  closedir(tasks);
  return threads;
}

static inline int exit_code_of(pid_t pid) {
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#endif
