/* The library in an engine's own event loop: epoll on the tier's eventfd, next to the timer of the scheduler.
 *
 *   ./05_event_loop HOST PORT FILE       against a running 02_serve of the same text
 *
 * Each scheduler step starts a request, asks for the keys of all requests that still wait for answers, and flushes
 * once. The eventfd is readable while results are queued; nothing in this program ever blocks but epoll_wait.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "example.h"

#define REQUESTS 8
#define MAX_SHARE (MAX_BLOCKS / REQUESTS + REQUESTS)
#define STEP_NS 2000000L

/* WAITING -> LOOKING -> LOADING -> ENDED; from LOOKING straight to ENDED when nothing is a hit. */
enum state { WAITING, LOOKING, LOADING, ENDED };

struct prompt {
    enum state state;
    char kv_request_id[24];
    uint64_t job_id;       /* the index of the prompt */
    uint32_t first, count; /* its blocks of the text */
    p2p_request *request;
};

struct engine {
    struct text text;
    uint8_t *region;
    p2p_tier *tier;
    const char *host, *port;
    struct prompt prompts[REQUESTS];
    uint32_t ended, failed, blocks_loaded, blocks_missed;
};

static void end(struct engine *engine, struct prompt *prompt, int is_well)
{
    p2p_request_finish(prompt->request);
    prompt->request = NULL;
    prompt->state = ENDED;
    engine->ended++;
    engine->failed += is_well ? 0 : 1;
}

static int start(struct engine *engine, struct prompt *prompt)
{
    char params[512];
    snprintf(params, sizeof params,
             "{\"remote_kv_source\": {\"kv_request_id\": \"%s\", \"remote_host\": \"%s\", \"remote_port\": %s}}",
             prompt->kv_request_id, engine->host, engine->port);
    if (!open_request(engine->tier, params, &prompt->request))
        return 0;
    prompt->state = LOOKING;
    return 1;
}

/* Asks once. When all keys are answered, loads the hits up to the first miss: a prefix is all a prompt can use. */
static int look_up(struct engine *engine, struct prompt *prompt)
{
    uint32_t states[MAX_SHARE], block_indexes[MAX_SHARE] = {0}, hits = 0;
    p2p_keys keys = text_keys(&engine->text, prompt->first, prompt->count);
    if (is_error(p2p_lookup(prompt->request, &keys, states), "p2p_lookup"))
        return 0;
    for (uint32_t i = 0; i < prompt->count; i++) {
        if (states[i] == P2P_LOOKUP_RETRY)
            return 1; /* the next step asks again */
        block_indexes[i] = prompt->first + i;
    }
    while (hits < prompt->count && states[hits] == P2P_LOOKUP_HIT)
        hits++;
    engine->blocks_missed += prompt->count - hits;
    if (hits == 0) {
        end(engine, prompt, report_request(prompt->request, prompt->kv_request_id));
        return 1;
    }
    keys.count = hits;
    prompt->state = LOADING;
    return !is_error(p2p_submit_load(prompt->request, prompt->job_id, &keys, block_indexes), "p2p_submit_load");
}

static int scheduler_step(struct engine *engine)
{
    int started = 0;
    for (int i = 0; i < REQUESTS; i++) {
        struct prompt *prompt = &engine->prompts[i];
        if (prompt->state == WAITING && started++ == 0 && !start(engine, prompt))
            return 0;
        if (prompt->state == LOOKING && !look_up(engine, prompt))
            return 0;
    }
    return !is_error(p2p_flush_lookups(engine->tier), "p2p_flush_lookups");
}

/* Takes results until none is left; that also makes the eventfd quiet again. */
static int drain_results(struct engine *engine)
{
    p2p_job_result results[4];
    size_t count = 0;
    do {
        if (is_error(p2p_poll_finished(engine->tier, results, sizeof results[0], 4, &count), "p2p_poll_finished"))
            return 0;
        for (size_t i = 0; i < count; i++) {
            if (results[i].outcome == P2P_OUTCOME_DONE) {
                engine->blocks_loaded += (uint32_t)(results[i].bytes / BLOCK_LEN);
                printf("request %" PRIu64 ": %.1f MiB in %.1f ms\n", results[i].job_id,
                       (double)results[i].bytes / (1 << 20), (double)results[i].nanoseconds / 1e6);
            } else {
                report_result(&results[i]);
            }
            end(engine, &engine->prompts[results[i].job_id], results[i].outcome == P2P_OUTCOME_DONE);
        }
    } while (count > 0);
    return 1;
}

static int run(struct engine *engine, int epoll_fd, int timer_fd)
{
    int32_t result_fd = -1;
    if (is_error(p2p_tier_event_fd(engine->tier, &result_fd), "p2p_tier_event_fd"))
        return 0;
    const struct itimerspec step = {{0, STEP_NS}, {0, STEP_NS}};
    struct epoll_event on_result = {.events = EPOLLIN, .data = {.fd = result_fd}};
    struct epoll_event on_timer = {.events = EPOLLIN, .data = {.fd = timer_fd}};
    if (timerfd_settime(timer_fd, 0, &step, NULL) != 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, result_fd, &on_result) != 0 ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &on_timer) != 0) {
        perror("epoll_ctl");
        return 0;
    }
    while (engine->ended < REQUESTS) {
        struct epoll_event events[2];
        int ready = epoll_wait(epoll_fd, events, 2, -1);
        if (ready < 0 && errno != EINTR) {
            perror("epoll_wait");
            return 0;
        }
        for (int i = 0; i < ready; i++) {
            uint64_t ticks;
            if (events[i].data.fd == result_fd ? !drain_results(engine)
                                               : read(timer_fd, &ticks, sizeof ticks) > 0 && !scheduler_step(engine))
                return 0;
        }
    }
    return 1;
}

static int open_tier(struct engine *engine)
{
    p2p_tier_config config;
    if (is_error(p2p_tier_config_init(&config, sizeof config), "p2p_tier_config_init"))
        return 0;
    config.base_addr = engine->region;
    config.num_blocks = engine->text.count;
    config.block_len = BLOCK_LEN;
    config.handshake_timeout_ms = PATIENCE_MS;
    return !is_error(p2p_tier_new(&config, &engine->tier), "p2p_tier_new");
}

int main(int argc, char **argv)
{
    static struct engine engine;
    if (argc != 4) {
        fprintf(stderr, "usage: %s HOST PORT FILE\n", argv[0]);
        return EXIT_FAILURE;
    }
    engine.host = argv[1];
    engine.port = argv[2];
    if (parse_port(argv[2]) == 0 || !text_load(argv[3], &engine.text))
        return EXIT_FAILURE;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        snprintf(engine.prompts[i].kv_request_id, sizeof engine.prompts[i].kv_request_id, "loop-%" PRIu32, i);
        engine.prompts[i].job_id = i;
        engine.prompts[i].first = engine.text.count * i / REQUESTS;
        engine.prompts[i].count = engine.text.count * (i + 1) / REQUESTS - engine.prompts[i].first;
    }
    p2p_log_init(P2P_LOG_WARN);
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    void *region = NULL;
    int ok = 0;
    if (epoll_fd < 0 || timer_fd < 0)
        perror("epoll_create1, timerfd_create");
    else if (!is_error(p2p_region_alloc((uint64_t)engine.text.count * BLOCK_LEN, 0, &region), "p2p_region_alloc")) {
        engine.region = region;
        ok = open_tier(&engine) && run(&engine, epoll_fd, timer_fd);
        printf("%" PRIu32 " blocks loaded, %" PRIu32 " to compute\n", engine.blocks_loaded, engine.blocks_missed);
    }
    for (int i = 0; i < REQUESTS; i++)
        p2p_request_finish(engine.prompts[i].request);
    p2p_tier_free(engine.tier);
    p2p_region_free(region);
    text_free(&engine.text);
    close(timer_fd);
    close(epoll_fd);
    return ok && engine.failed == 0 && engine.blocks_loaded > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
