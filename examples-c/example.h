/* What the examples share: the keys of a text, bytes that stand for its KV cache, and readable errors. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <p2pkv.h>

#include "sha256.h"

#define BLOCK_TOKENS 16       /* tokens in one KV-cache block */
#define BLOCK_LEN (64 * 1024) /* bytes of one KV-cache block; both sides must agree */
#define KEY_LEN 36            /* 32 bytes of block hash, 4 bytes of KV-cache-group index */
#define MAX_BLOCKS 4096       /* longer texts are cut, so that a region is at most 256 MiB */

/* How long a peer that is not there is waited for: somebody watches, so less than the library's 30 s. */
#ifndef PATIENCE_MS
#define PATIENCE_MS 10000
#endif

/* The keys of all full blocks of one text. */
struct text {
    uint8_t *key_bytes; /* count * KEY_LEN, owned */
    uint32_t count;
};

/* `count` keys of the text from block `first` on, as the library takes them. */
static inline p2p_keys text_keys(const struct text *text, uint32_t first, uint32_t count)
{
    p2p_keys keys = {text->key_bytes + (size_t)first * KEY_LEN, KEY_LEN, count};
    return keys;
}

static inline size_t cbor_uint(uint8_t *out, uint32_t value)
{
    size_t extra = value < 24 ? 0 : value <= 0xff ? 1 : value <= 0xffff ? 2 : 4;
    static const uint8_t head[5] = {0, 0x18, 0x19, 0, 0x1a};
    out[0] = extra == 0 ? (uint8_t)value : head[extra];
    for (size_t i = 0; i < extra; i++)
        out[1 + i] = (uint8_t)(value >> (8 * (extra - 1 - i)));
    return 1 + extra;
}

/* One link of vLLM's chain (`--prefix-caching-hash-algo sha256_cbor`):
 * SHA-256 of the canonical CBOR of [parent hash, [16 token ids], null]. `hash` is the parent, then the result. */
static inline void chain_block_hash(uint8_t hash[32], const uint32_t tokens[BLOCK_TOKENS])
{
    uint8_t cbor[3 + 32 + 1 + BLOCK_TOKENS * 5 + 1] = {0x83, 0x58, 32}; /* array of 3, 32 bytes follow */
    size_t len = 3;
    memcpy(cbor + len, hash, 32);
    len += 32;
    cbor[len++] = 0x80 | BLOCK_TOKENS;
    for (size_t i = 0; i < BLOCK_TOKENS; i++)
        len += cbor_uint(cbor + len, tokens[i]);
    cbor[len++] = 0xf6; /* null: no adapter, no image */
    sha256_of(cbor, len, hash);
}

/* Every byte of the text is one token (a byte-level tokenizer). A tail shorter than a block has no key. */
static inline void chain_keys(struct text *text, const uint8_t *bytes)
{
    static const char seed[] = "\x6evllm-none-hash"; /* CBOR text of 14 bytes: the parent of the first block */
    uint8_t hash[32];
    sha256_of(seed, sizeof seed - 1, hash);
    for (uint32_t block = 0; block < text->count; block++) {
        uint32_t tokens[BLOCK_TOKENS];
        for (size_t i = 0; i < BLOCK_TOKENS; i++)
            tokens[i] = bytes[(size_t)block * BLOCK_TOKENS + i];
        chain_block_hash(hash, tokens);
        uint8_t *key = text->key_bytes + (size_t)block * KEY_LEN;
        memcpy(key, hash, 32);
        memset(key + 32, 0, 4); /* KV-cache group 0, big-endian */
    }
}

static inline void text_free(struct text *text)
{
    free(text->key_bytes);
    text->key_bytes = NULL;
}

/* Reads the file and makes its keys. On failure says why and returns 0; then nothing is to be freed. */
static inline int text_load(const char *path, struct text *text_out)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 0;
    }
    size_t capacity = (size_t)MAX_BLOCKS * BLOCK_TOKENS;
    uint8_t *bytes = malloc(capacity);
    size_t len = bytes == NULL ? 0 : fread(bytes, 1, capacity, file);
    int unreadable = ferror(file);
    fclose(file);
    text_out->count = (uint32_t)(len / BLOCK_TOKENS);
    text_out->key_bytes = text_out->count == 0 ? NULL : malloc((size_t)text_out->count * KEY_LEN);
    if (text_out->key_bytes != NULL)
        chain_keys(text_out, bytes);
    else
        fprintf(stderr, "%s: %s\n", path,
                bytes == NULL || text_out->count > 0 ? "out of memory"
                : unreadable                         ? "cannot be read"
                                                     : "shorter than one block of 16 bytes");
    free(bytes);
    return text_out->key_bytes != NULL;
}

/* Bytes that stand for the KV cache of a block. They follow from the key, so both sides know them without a model.
 * An engine copies the block from its GPU instead. */
static inline void kv_compute(const uint8_t *key, uint8_t *block_out)
{
    uint64_t word;
    memcpy(&word, key, sizeof word);
    for (size_t i = 0; i < BLOCK_LEN / sizeof word; i++) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        memcpy(block_out + i * sizeof word, &word, sizeof word);
    }
}

/* Whether the block holds exactly the bytes that belong to the key. */
static inline int kv_is_right(const uint8_t *key, const uint8_t *block)
{
    static uint8_t expected[BLOCK_LEN];
    kv_compute(key, expected);
    return memcmp(expected, block, BLOCK_LEN) == 0;
}

static inline double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Returns 1 when `status` is an error, after saying which call failed and why. Positive codes are not errors. */
static inline int is_error(p2p_status status, const char *call)
{
    if ((int32_t)status >= 0)
        return 0;
    fprintf(stderr, "%s: %s: %s\n", call, p2p_status_name(status), p2p_last_error());
    return 1;
}

/* Says how a job ended that did not end well, and what an engine should do about it. */
static inline void report_result(const p2p_job_result *result)
{
    static const char *const advice[] = {"nothing to do", "RETRY: ask again, here or elsewhere",
                                         "RECOMPUTE: compute these blocks",
                                         "FIX_CONFIGURATION: compute these blocks, and have somebody look",
                                         "BUG: the program did something out of order"};
    const char *class_text = result->outcome_class < 5 ? advice[result->outcome_class] : "unknown class";
    fprintf(stderr, "%s %" PRIu64 ": %s (%s): %s\n", result->kind == P2P_JOB_KIND_LOAD ? "load" : "store",
            result->job_id, p2p_outcome_name(result->outcome), class_text, result->detail);
}

static inline p2p_str string_of(const char *text)
{
    p2p_str string = {text, P2P_NUL_TERMINATED};
    return string;
}

/* A request with the roles that its kv_transfer_params say. Returns 1 when done. */
static inline int open_request(const p2p_tier *tier, const char *kv_transfer_params, p2p_request **request_out)
{
    p2p_request_options options;
    if (is_error(p2p_request_options_init(&options, sizeof options), "p2p_request_options_init"))
        return 0;
    options.kv_transfer_params_json = string_of(kv_transfer_params);
    return !is_error(p2p_request_new(tier, &options, request_out), "p2p_request_new");
}

/* Says what is wrong between the request and its producer: why lookups are misses. Returns 1 when nothing is. */
static inline int report_request(const p2p_request *request, const char *name)
{
    uint32_t outcome;
    char reason[512];
    size_t len;
    if (is_error(p2p_request_outcome(request, &outcome, reason, sizeof reason, &len), "p2p_request_outcome"))
        return 0;
    if (outcome != P2P_OUTCOME_DONE)
        fprintf(stderr, "%s: %s: %s\n", name, p2p_outcome_name(outcome), reason);
    return outcome == P2P_OUTCOME_DONE;
}

/* What the tier knows of its peers: why one is not ready, or by which transport its blocks come. */
static inline void report_peers(const p2p_tier *tier)
{
    static const char *const states[] = {"?", "connecting", "handshake", "ready", "draining", "backing off"};
    p2p_peer_info peers[8];
    size_t count = 0;
    if (is_error(p2p_peers(tier, peers, sizeof peers[0], 8, &count), "p2p_peers"))
        return;
    for (size_t i = 0; i < count && i < 8; i++)
        fprintf(stderr, "peer %s: %s %s: %s\n", peers[i].peer_id, states[peers[i].state < 6 ? peers[i].state : 0],
                peers[i].transport, peers[i].detail);
}

/* A port number, or 0 with a complaint. */
static inline uint32_t parse_port(const char *text)
{
    char *end;
    unsigned long port = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || port == 0 || port > 65535) {
        fprintf(stderr, "%s: not a port (1 to 65535)\n", text);
        return 0;
    }
    return (uint32_t)port;
}

#endif
