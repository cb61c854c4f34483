#include "snapshot.h"

#include <cstring>

namespace {
constexpr uint64_t snapshot_magic = 0x31544f4853564b50;  // "PKVSHOT1"
}

uint32_t parts_for(uint64_t state_bytes, uint64_t block_len) {
    return static_cast<uint32_t>((sizeof(SnapshotHeader) + state_bytes + block_len - 1) / block_len);
}

void write_snapshot_header(uint8_t *block, uint64_t state_bytes, uint32_t parts, uint32_t first_token,
                           uint32_t end_token) {
    const SnapshotHeader header{snapshot_magic, state_bytes, parts, first_token, end_token, 0};
    std::memcpy(block, &header, sizeof header);
}

std::optional<SnapshotHeader> read_snapshot_header(const uint8_t *block, uint64_t block_len) {
    SnapshotHeader header;
    std::memcpy(&header, block, sizeof header);
    const bool sound = header.magic == snapshot_magic && header.first_token < header.end_token &&
                       header.state_bytes <= (uint64_t{1} << 40) &&
                       header.parts == parts_for(header.state_bytes, block_len);
    return sound ? std::optional(header) : std::nullopt;
}
