/* Pulls the KV blocks of a text from a running 02_serve and checks every byte.
 *
 *   ./03_fetch HOST PORT FILE            for example: ./03_fetch 127.0.0.1 5600 ../README.md
 *
 * Symmetric mode: look keys up, load the hits, compute the misses. One load ends one round of the request, so the
 * text is taken in rounds of ROUND_BLOCKS; the next lookup is on its way while the last load still moves.
 */
#define _POSIX_C_SOURCE 200809L
#include "example.h"

#define ROUND_BLOCKS 512

struct fetch {
    struct text text;
    uint8_t *region;
    p2p_tier *tier;
    p2p_request *request;
    uint32_t hits, misses, loads_live, loads_failed;
    uint64_t bytes;
    double began; /* when the first load was submitted */
};

static int open_fetch(struct fetch *fetch, const char *host, const char *port)
{
    p2p_tier_config config;
    if (is_error(p2p_tier_config_init(&config, sizeof config), "p2p_tier_config_init"))
        return 0;
    config.base_addr = fetch->region;
    config.num_blocks = fetch->text.count;
    config.block_len = BLOCK_LEN;
    config.handshake_timeout_ms = 5000; /* somebody watches: 5 s instead of 30 s for a peer that is not there */
    if (is_error(p2p_tier_new(&config, &fetch->tier), "p2p_tier_new"))
        return 0;

    char params[512];
    snprintf(params, sizeof params,
             "{\"remote_kv_source\": {\"kv_request_id\": \"fetch-1\", \"remote_host\": \"%s\", \"remote_port\": %s}}", host,
             port);
    return open_request(fetch->tier, params, &fetch->request);
}

/* Takes the loads that finished within `timeout_ms` and moves the progress line on. */
static int collect(struct fetch *fetch, uint64_t timeout_ms)
{
    p2p_job_result results[16];
    size_t count = 0;
    if (is_error(p2p_wait_finished(fetch->tier, results, sizeof results[0], 16, timeout_ms, &count), "p2p_wait_finished"))
        return 0;
    for (size_t i = 0; i < count; i++) {
        fetch->loads_live--;
        fetch->bytes += results[i].bytes;
        if (results[i].outcome != P2P_OUTCOME_DONE) {
            fetch->loads_failed++;
            report_result(&results[i]);
        }
        printf("\r%5.1f %%  %.1f MiB ", 100.0 * (double)fetch->bytes / ((double)fetch->text.count * BLOCK_LEN),
               (double)fetch->bytes / (1 << 20));
        fflush(stdout);
    }
    return 1;
}

/* Asks for `keys` until each is HIT or MISS. It ends by itself: the library turns keys that a peer never answers
 * into misses after the lookup timeout. */
static int look_up(struct fetch *fetch, const p2p_keys *keys, uint32_t *states)
{
    for (;;) {
        if (is_error(p2p_lookup(fetch->request, keys, states), "p2p_lookup") ||
            is_error(p2p_flush_lookups(fetch->tier), "p2p_flush_lookups"))
            return 0;
        size_t unanswered = 0;
        for (size_t i = 0; i < keys->count; i++)
            unanswered += states[i] == P2P_LOOKUP_RETRY;
        if (unanswered == 0)
            return 1;
        if (!collect(fetch, 1)) /* an engine would do its next scheduler step here */
            return 0;
    }
}

/* One round: blocks `first` .. `first + count` of the text, each into the block of the same index. */
static int fetch_round(struct fetch *fetch, uint32_t first, uint32_t count)
{
    uint32_t states[ROUND_BLOCKS], block_indexes[ROUND_BLOCKS];
    uint8_t hit_keys[ROUND_BLOCKS * KEY_LEN];
    p2p_keys keys = text_keys(&fetch->text, first, count);
    if (!look_up(fetch, &keys, states))
        return 0;
    p2p_keys wanted = {hit_keys, KEY_LEN, 0};
    for (uint32_t i = 0; i < count; i++) {
        if (states[i] != P2P_LOOKUP_HIT)
            continue;
        memcpy(hit_keys + wanted.count * KEY_LEN, keys.data + (size_t)i * KEY_LEN, KEY_LEN);
        block_indexes[wanted.count++] = first + i;
    }
    fetch->hits += (uint32_t)wanted.count;
    fetch->misses += count - (uint32_t)wanted.count;
    if (wanted.count == 0)
        return 1;
    if (fetch->began == 0)
        fetch->began = now_seconds();
    if (is_error(p2p_submit_load(fetch->request, first, &wanted, block_indexes), "p2p_submit_load"))
        return 0;
    fetch->loads_live++;
    return 1;
}

/* Loads everything that the peer has. Returns 1 when every load that was submitted has its result. */
static int fetch_all(struct fetch *fetch)
{
    for (uint32_t first = 0; first < fetch->text.count; first += ROUND_BLOCKS) {
        uint32_t left = fetch->text.count - first;
        if (!fetch_round(fetch, first, left < ROUND_BLOCKS ? left : ROUND_BLOCKS))
            return 0;
        if (fetch->hits == 0)
            break; /* keys are chained: without the first blocks the others are of no use */
    }
    while (fetch->loads_live > 0)
        if (!collect(fetch, P2P_TIMEOUT_INFINITE))
            return 0;
    return 1;
}

/* All keys were misses: the peer answered and has none, or there is no peer. Then a load ends at once and says why. */
static void explain_no_hits(const struct fetch *fetch, const char *host, const char *port)
{
    p2p_keys keys = text_keys(&fetch->text, 0, 1);
    const uint32_t block_index = 0;
    p2p_job_result result;
    size_t count = 0;
    fprintf(stderr, "no block of this text could be had from %s:%s\n", host, port);
    report_peers(fetch->tier);
    if (!is_error(p2p_submit_load(fetch->request, 0, &keys, &block_index), "p2p_submit_load") &&
        p2p_wait_finished(fetch->tier, &result, sizeof result, 1, 5000, &count) == P2P_STATUS_OK)
        report_result(&result);
}

/* Checks each byte that was loaded and prints the table. Returns 1 when all is well. */
static int verify_and_report(const struct fetch *fetch, double seconds)
{
    uint32_t right = 0;
    for (uint32_t block = 0; block < fetch->text.count; block++)
        right += kv_is_right(fetch->text.key_bytes + (size_t)block * KEY_LEN, fetch->region + (size_t)block * BLOCK_LEN);
    int ok = fetch->loads_failed == 0 && fetch->hits > 0 && right == fetch->hits;
    printf("\n%10s %14s %10s %8s %8s %8s  %s\n", "blocks", "bytes", "seconds", "GB/s", "hits", "misses", "checksum");
    printf("%10" PRIu32 " %14" PRIu64 " %10.3f %8.2f %8" PRIu32 " %8" PRIu32 "  %s\n", fetch->text.count, fetch->bytes,
           seconds, (double)fetch->bytes / seconds / 1e9, fetch->hits, fetch->misses, ok ? "ok" : "WRONG");
    return ok;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s HOST PORT FILE\n", argv[0]);
        return EXIT_FAILURE;
    }
    struct fetch fetch;
    memset(&fetch, 0, sizeof fetch);
    if (parse_port(argv[2]) == 0 || !text_load(argv[3], &fetch.text))
        return EXIT_FAILURE;

    p2p_log_init(P2P_LOG_WARN);
    int ok = 0;
    void *region = NULL;
    if (!is_error(p2p_region_alloc((uint64_t)fetch.text.count * BLOCK_LEN, 0, &region), "p2p_region_alloc")) {
        fetch.region = region;
        if (open_fetch(&fetch, argv[1], argv[2]) && fetch_all(&fetch)) {
            if (fetch.hits == 0)
                explain_no_hits(&fetch, argv[1], argv[2]);
            else
                ok = verify_and_report(&fetch, now_seconds() - fetch.began);
        }
    }
    p2p_request_finish(fetch.request);
    p2p_tier_free(fetch.tier);
    p2p_region_free(region);
    text_free(&fetch.text);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
