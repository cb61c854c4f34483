/* Prefill/decode: one side computes a prompt, the other pulls its blocks. Start the two in either order.
 *
 *   ./04_pd prefill PORT FILE            for example: ./04_pd prefill 5601 ../README.md
 *   ./04_pd decode HOST PORT FILE                     ./04_pd decode 127.0.0.1 5601 ../README.md
 *
 * Both get the same kv_request_id from whoever hands out the requests. There is no lookup: the decoder counts on
 * the prefiller to have every block, and names them all in one load.
 */
#define _POSIX_C_SOURCE 200809L
#include "example.h"

#define KV_REQUEST_ID "pd-1"
#define STEP_BLOCKS 64 /* the prefiller stores this many blocks at a time, as it computes them */

struct side {
    struct text text;
    uint8_t *region;
    uint32_t *block_indexes; /* block i of the text lives in block i of the region */
    p2p_tier *tier;
    p2p_request *request;
};

static int open_side(struct side *side, uint32_t port, const char *kv_transfer_params)
{
    p2p_tier_config config;
    if (is_error(p2p_tier_config_init(&config, sizeof config), "p2p_tier_config_init"))
        return 0;
    config.port = port;
    config.base_addr = side->region;
    config.num_blocks = side->text.count;
    config.block_len = BLOCK_LEN;
    if (is_error(p2p_tier_new(&config, &side->tier), "p2p_tier_new"))
        return 0;
    return open_request(side->tier, kv_transfer_params, &side->request);
}

/* Waits for `jobs` results. Returns 1 when all of them are DONE. */
static int wait_for(const struct side *side, uint32_t jobs, const char *verb)
{
    uint32_t failed = 0;
    uint64_t bytes = 0;
    while (jobs > 0) {
        p2p_job_result results[32];
        size_t count = 0;
        if (is_error(p2p_wait_finished(side->tier, results, sizeof results[0], 32, P2P_TIMEOUT_INFINITE, &count),
                     "p2p_wait_finished"))
            return 0;
        for (size_t i = 0; i < count; i++) {
            bytes += results[i].bytes;
            if (results[i].outcome != P2P_OUTCOME_DONE) {
                failed++;
                report_result(&results[i]);
            }
        }
        jobs -= (uint32_t)count;
    }
    printf("%s %.1f MiB\n", verb, (double)bytes / (1 << 20));
    return failed == 0;
}

/* Stores blocks as they are computed. They wait in the tier until the decoder asks, for a minute at most. */
static int prefill(struct side *side)
{
    uint32_t policy = P2P_OFFLOAD_CHUNK_LEVEL;
    if (is_error(p2p_request_offload_policy(side->request, &policy), "p2p_request_offload_policy"))
        return 0;
    if (policy == P2P_OFFLOAD_REQUEST_LEVEL)
        printf("a decoder waits for this request: all %" PRIu32 " blocks are stored, old ones too\n", side->text.count);

    uint32_t jobs = 0;
    int ok = 1;
    for (uint32_t first = 0; ok && first < side->text.count; first += STEP_BLOCKS) {
        uint32_t left = side->text.count - first;
        uint32_t count = left < STEP_BLOCKS ? left : STEP_BLOCKS;
        for (uint32_t block = first; block < first + count; block++)
            kv_compute(side->text.key_bytes + (size_t)block * KEY_LEN, side->region + (size_t)block * BLOCK_LEN);
        p2p_keys keys = text_keys(&side->text, first, count);
        ok = !is_error(p2p_submit_store(side->request, jobs, &keys, side->block_indexes + first), "p2p_submit_store");
        jobs += (uint32_t)ok;
    }
    /* The bytes must stay as they are until each store has its result. */
    return wait_for(side, jobs, "sent") && ok;
}

static int decode(struct side *side)
{
    p2p_keys keys = text_keys(&side->text, 0, side->text.count);
    if (is_error(p2p_submit_load(side->request, 0, &keys, side->block_indexes), "p2p_submit_load"))
        return 0;
    printf("waiting for %" PRIu32 " blocks\n", side->text.count);
    fflush(stdout);
    if (!wait_for(side, 1, "received"))
        return 0;
    uint32_t wrong = 0;
    for (uint32_t block = 0; block < side->text.count; block++)
        wrong += !kv_is_right(side->text.key_bytes + (size_t)block * KEY_LEN, side->region + (size_t)block * BLOCK_LEN);
    printf("checksum %s: %" PRIu32 " of %" PRIu32 " blocks differ\n", wrong == 0 ? "ok" : "WRONG", wrong, side->text.count);
    return wrong == 0;
}

int main(int argc, char **argv)
{
    int is_prefill = argc == 4 && strcmp(argv[1], "prefill") == 0;
    int is_decode = argc == 5 && strcmp(argv[1], "decode") == 0;
    if (!is_prefill && !is_decode) {
        fprintf(stderr, "usage: %s prefill PORT FILE\n       %s decode HOST PORT FILE\n", argv[0], argv[0]);
        return EXIT_FAILURE;
    }
    struct side side;
    memset(&side, 0, sizeof side);
    uint32_t port = parse_port(argv[argc - 2]);
    if (port == 0 || !text_load(argv[argc - 1], &side.text))
        return EXIT_FAILURE;

    char params[512] = "{\"remote_decoder\": {\"kv_request_id\": \"" KV_REQUEST_ID "\"}}";
    if (is_decode)
        snprintf(params, sizeof params,
                 "{\"remote_prefiller\": {\"kv_request_id\": \"" KV_REQUEST_ID
                 "\", \"remote_host\": \"%s\", \"remote_port\": %" PRIu32 "}}",
                 argv[2], port);

    p2p_log_init(P2P_LOG_WARN);
    int ok = 0;
    void *region = NULL;
    side.block_indexes = malloc(side.text.count * sizeof *side.block_indexes);
    if (side.block_indexes != NULL &&
        !is_error(p2p_region_alloc((uint64_t)side.text.count * BLOCK_LEN, 0, &region), "p2p_region_alloc")) {
        side.region = region;
        for (uint32_t block = 0; block < side.text.count; block++)
            side.block_indexes[block] = block;
        if (open_side(&side, is_prefill ? port : 0, params))
            ok = is_prefill ? prefill(&side) : decode(&side);
    }
    p2p_request_finish(side.request);
    p2p_tier_free(side.tier);
    p2p_region_free(region);
    free(side.block_indexes);
    text_free(&side.text);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
