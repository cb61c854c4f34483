/* Serves the KV blocks of a text until SIGINT or SIGTERM. 03_fetch is the other side.
 *
 *   ./02_serve FILE [PORT [HOST]]        for example: ./02_serve ../README.md 5600
 *
 * The blocks are published in the library's directory, so peers' lookups are answered and their blocks sent
 * by the library's own thread, without a call into this program.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <signal.h>

#include "example.h"

/* Opens a tier over `region`; NULL after saying why not. */
static p2p_tier *open_tier(const struct text *text, void *region, uint32_t port, const char *host)
{
    p2p_tier_config config;
    if (is_error(p2p_tier_config_init(&config, sizeof config), "p2p_tier_config_init"))
        return NULL;
    config.host = string_of(host);
    config.port = port;
    config.base_addr = region;
    config.num_blocks = text->count;
    config.block_len = BLOCK_LEN;

    p2p_tier *tier = NULL;
    if (is_error(p2p_tier_new(&config, &tier), "p2p_tier_new"))
        return NULL;
    return tier;
}

/* Computes every block and publishes key i -> block i. Returns 1 when done. */
static int publish_text(const p2p_tier *tier, const struct text *text, uint8_t *region)
{
    uint32_t *block_indexes = malloc(text->count * sizeof *block_indexes);
    if (block_indexes == NULL) {
        perror("malloc");
        return 0;
    }
    for (uint32_t block = 0; block < text->count; block++) {
        block_indexes[block] = block;
        kv_compute(text->key_bytes + (size_t)block * KEY_LEN, region + (size_t)block * BLOCK_LEN);
    }
    p2p_keys keys = text_keys(text, 0, text->count);
    p2p_status status = p2p_publish(tier, &keys, block_indexes);
    free(block_indexes);
    return !is_error(status, "p2p_publish");
}

/* Reports once a second, when something was served or a peer came or went, until one of `signals` arrives. */
static int serve_until_signal(const p2p_tier *tier, const sigset_t *signals)
{
    const struct timespec second = {1, 0};
    uint64_t reported_bytes = 0, reported_peers = 0;
    for (;;) {
        int signal_number = sigtimedwait(signals, NULL, &second);
        if (signal_number < 0 && errno != EAGAIN && errno != EINTR) {
            perror("sigtimedwait");
            return 0;
        }
        p2p_tier_statistics stats;
        memset(&stats, 0, sizeof stats);
        stats.struct_size = sizeof stats;
        if (is_error(p2p_tier_stats(tier, &stats), "p2p_tier_stats"))
            return 0;
        if (stats.bytes_out != reported_bytes || stats.peers != reported_peers || signal_number > 0)
            printf("served %" PRIu64 " blocks, %.1f MiB in all; peers now: %" PRIu64 "\n", stats.bytes_out / BLOCK_LEN,
                   (double)stats.bytes_out / (1 << 20), stats.peers);
        fflush(stdout);
        reported_bytes = stats.bytes_out;
        reported_peers = stats.peers;
        if (signal_number > 0) {
            printf("signal %d: closing\n", signal_number);
            return 1;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: %s FILE [PORT [HOST]]\n", argv[0]);
        return EXIT_FAILURE;
    }
    uint32_t port = argc > 2 ? parse_port(argv[2]) : 5600;
    const char *host = argc > 3 ? argv[3] : "127.0.0.1";
    struct text text;
    if (port == 0 || !text_load(argv[1], &text))
        return EXIT_FAILURE;

    /* Blocked before the tier makes its thread, so that only sigtimedwait sees them. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);

    p2p_log_init(P2P_LOG_WARN);
    int ok = 0;
    void *region = NULL;
    p2p_tier *tier = NULL;
    if (!is_error(p2p_region_alloc((uint64_t)text.count * BLOCK_LEN, 0, &region), "p2p_region_alloc"))
        tier = open_tier(&text, region, port, host);
    if (tier != NULL && publish_text(tier, &text, region)) {
        char local_id[264];
        size_t len;
        if (!is_error(p2p_tier_local_id(tier, local_id, sizeof local_id, &len), "p2p_tier_local_id")) {
            printf("serving %" PRIu32 " blocks of %d bytes at %s\n", text.count, BLOCK_LEN, local_id);
            fflush(stdout);
            ok = serve_until_signal(tier, &signals);
        }
    }
    p2p_tier_free(tier); /* first the tier, then the region that it works in */
    p2p_region_free(region);
    text_free(&text);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
