/* SHA-256 (FIPS 180-4) in one header, so that the examples need no other library. */
#ifndef EXAMPLE_SHA256_H
#define EXAMPLE_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct sha256 {
    uint32_t state[8];
    uint64_t length;   /* bytes taken so far */
    uint8_t chunk[64]; /* the unfinished tail of the input */
};

static inline uint32_t sha256_rotate(uint32_t word, unsigned bits)
{
    return (word >> bits) | (word << (32 - bits));
}

static inline void sha256_compress(uint32_t state[8], const uint8_t chunk[64])
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64];
    for (size_t i = 0; i < 16; i++) {
        const uint8_t *word = chunk + 4 * i;
        w[i] = (uint32_t)word[0] << 24 | (uint32_t)word[1] << 16 | (uint32_t)word[2] << 8 | word[3];
    }
    for (size_t i = 16; i < 64; i++) {
        uint32_t s0 = sha256_rotate(w[i - 15], 7) ^ sha256_rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 = sha256_rotate(w[i - 2], 17) ^ sha256_rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (size_t i = 0; i < 64; i++) {
        uint32_t s1 = sha256_rotate(e, 6) ^ sha256_rotate(e, 11) ^ sha256_rotate(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
        uint32_t s0 = sha256_rotate(a, 2) ^ sha256_rotate(a, 13) ^ sha256_rotate(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static inline void sha256_init(struct sha256 *sha)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, start, sizeof start);
    sha->length = 0;
}

static inline void sha256_update(struct sha256 *sha, const void *data, size_t len)
{
    const uint8_t *bytes = (const uint8_t *)data; /* the cast is for C++ */
    while (len > 0) {
        size_t held = (size_t)(sha->length % 64);
        size_t take = len < 64 - held ? len : 64 - held;
        memcpy(sha->chunk + held, bytes, take);
        sha->length += take;
        bytes += take;
        len -= take;
        if (held + take == 64)
            sha256_compress(sha->state, sha->chunk);
    }
}

static inline void sha256_final(struct sha256 *sha, uint8_t digest_out[32])
{
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = sha->length * 8;
    size_t held = (size_t)(sha->length % 64);
    sha256_update(sha, padding, held < 56 ? 56 - held : 120 - held);
    uint8_t length[8];
    for (size_t i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_update(sha, length, sizeof length);
    for (size_t i = 0; i < 32; i++)
        digest_out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

static inline void sha256_of(const void *data, size_t len, uint8_t digest_out[32])
{
    struct sha256 sha;
    sha256_init(&sha);
    sha256_update(&sha, data, len);
    sha256_final(&sha, digest_out);
}

#endif
