/* Pulls the KV blocks of a text from a running 02_serve and checks every byte.
 *
 *   ./03_fetch HOST PORT FILE            for example: ./03_fetch 127.0.0.1 5600 ../README.md
 *
 * Symmetric mode: look keys up, load the hits up to the first miss, compute the rest. One load ends one round of the
 * request, so the text is taken in rounds of ROUND_BLOCKS; the next is looked up while the last load still moves.
 */
#define _POSIX_C_SOURCE 200809L
#include "example.h"

#define KV_REQUEST_ID "fetch-1"
#define ROUND_BLOCKS 512

struct fetch {
    struct text text;
    uint8_t *region;
    p2p_tier *tier;
    p2p_request *request;
    uint32_t hits, loads_live, loads_failed;
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
    config.handshake_timeout_ms = PATIENCE_MS;
    if (is_error(p2p_tier_new(&config, &fetch->tier), "p2p_tier_new"))
        return 0;

    char params[512];
    snprintf(params, sizeof params,
             "{\"remote_kv_source\": {\"kv_request_id\": \"" KV_REQUEST_ID
             "\", \"remote_host\": \"%s\", \"remote_port\": %s}}",
             host, port);
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
            fprintf(stderr, "%s", fetch->loads_failed++ == 0 ? "\n" : ""); /* ends the progress line */
            report_result(&results[i]);
            continue;
        }
        printf("\r%5.1f %%  %.1f MiB ", 100.0 * (double)fetch->bytes / ((double)fetch->text.count * BLOCK_LEN),
               (double)fetch->bytes / (1 << 20));
        fflush(stdout);
    }
    return 1;
}

/* Asks for `keys` and waits until each is HIT or MISS. It ends by itself: the library turns keys that a peer never
 * answers into misses after the lookup timeout. An engine does not wait but asks again in its next step: 05_event_loop. */
static int look_up(const struct fetch *fetch, const p2p_keys *keys, uint32_t *states)
{
    return !is_error(p2p_lookup(fetch->request, keys, states), "p2p_lookup") &&
           !is_error(p2p_wait_lookups(fetch->request, P2P_TIMEOUT_INFINITE), "p2p_wait_lookups") &&
           !is_error(p2p_lookup(fetch->request, keys, states), "p2p_lookup");
}

/* One round: blocks `first` .. `first + count` of the text, up to the first miss: keys are chained, so behind a missing
 * block the others are of no use. Each goes into the block of the same index. */
static int fetch_round(struct fetch *fetch, uint32_t first, uint32_t count, uint32_t *hits_out)
{
    uint32_t states[ROUND_BLOCKS], block_indexes[ROUND_BLOCKS], hits = 0;
    p2p_keys keys = text_keys(&fetch->text, first, count);
    if (!look_up(fetch, &keys, states))
        return 0;
    for (; hits < count && states[hits] == P2P_LOOKUP_HIT; hits++)
        block_indexes[hits] = first + hits;
    *hits_out = keys.count = hits;
    if (hits == 0)
        return 1;
    if (fetch->began == 0)
        fetch->began = now_seconds();
    if (is_error(p2p_submit_load(fetch->request, first, &keys, block_indexes), "p2p_submit_load"))
        return 0;
    fetch->loads_live++;
    return 1;
}

/* Loads everything that the peer has. Returns 1 when every load that was submitted has its result. */
static int fetch_all(struct fetch *fetch)
{
    uint32_t asked = ROUND_BLOCKS, hits = ROUND_BLOCKS;
    for (; hits == asked && fetch->hits < fetch->text.count; fetch->hits += hits) {
        uint32_t left = fetch->text.count - fetch->hits;
        asked = left < ROUND_BLOCKS ? left : ROUND_BLOCKS;
        if (!fetch_round(fetch, fetch->hits, asked, &hits) || !collect(fetch, 0))
            return 0;
    }
    while (fetch->loads_live > 0)
        if (!collect(fetch, P2P_TIMEOUT_INFINITE))
            return 0;
    return 1;
}

/* Checks each byte that was loaded and prints the table. Returns 1 when all is well. */
static int verify_and_report(const struct fetch *fetch, double seconds)
{
    uint32_t right = 0;
    for (uint32_t block = 0; block < fetch->hits; block++)
        right += kv_is_right(fetch->text.key_bytes + (size_t)block * KEY_LEN, fetch->region + (size_t)block * BLOCK_LEN);
    const char *verdict = fetch->loads_failed > 0 ? "INCOMPLETE" : right == fetch->hits ? "ok" : "WRONG";
    printf("\n%10s %14s %10s %8s %8s %8s  %s\n", "blocks", "bytes", "seconds", "GB/s", "hits", "misses", "checksum");
    printf("%10" PRIu32 " %14" PRIu64 " %10.3f %8.2f %8" PRIu32 " %8" PRIu32 "  %s\n", fetch->text.count, fetch->bytes,
           seconds, (double)fetch->bytes / seconds / 1e9, fetch->hits, fetch->text.count - fetch->hits, verdict);
    return strcmp(verdict, "ok") == 0;
}

/* What became of the fetch. Misses have a reason if the request has one: the peer is lost, or is not there. */
static int report(const struct fetch *fetch, const char *host, const char *port)
{
    int is_well = report_request(fetch->request, KV_REQUEST_ID);
    if (fetch->hits > 0)
        return verify_and_report(fetch, now_seconds() - fetch->began) && is_well;
    fprintf(stderr, "no block of this text could be had from %s:%s\n", host, port);
    report_peers(fetch->tier);
    return 0;
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
        memset(region, 0xff, (size_t)fetch.text.count * BLOCK_LEN); /* an engine's pool is in memory already */
        ok = open_fetch(&fetch, argv[1], argv[2]) && fetch_all(&fetch) && report(&fetch, argv[1], argv[2]);
    }
    p2p_request_finish(fetch.request);
    p2p_tier_free(fetch.tier);
    p2p_region_free(region);
    text_free(&fetch.text);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
