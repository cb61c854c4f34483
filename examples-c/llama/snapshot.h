// A snapshot: llama.cpp's bytes for one prefix (or for its last chunk), laid into one run of adjacent blocks.
//
//   | header | state bytes ............................................ | unused |
//   | block first          | block first + 1      | ...                          |
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "key_chain.h"

// Stands at the front of the first block. Written and read in this process's byte order: the state behind it is
// llama.cpp's, which is not portable between byte orders either, and the fingerprint keeps such peers apart.
struct SnapshotHeader {
    uint64_t magic;
    uint64_t state_bytes;
    uint32_t parts;
    uint32_t first_token;  // the state covers positions first_token .. end_token - 1
    uint32_t end_token;
    uint32_t reserved;
};
static_assert(sizeof(SnapshotHeader) == 32, "the header is part of what peers exchange");

struct Snapshot {
    ChainKey key;
    uint32_t first_block;
    uint32_t parts;
};

uint32_t parts_for(uint64_t state_bytes, uint64_t block_len);

void write_snapshot_header(uint8_t *block, uint64_t state_bytes, uint32_t parts, uint32_t first_token,
                           uint32_t end_token);

// Nothing when the block does not begin with a header that fits `block_len`.
std::optional<SnapshotHeader> read_snapshot_header(const uint8_t *block, uint64_t block_len);
