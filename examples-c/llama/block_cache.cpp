#include "block_cache.h"

#include <cstring>

namespace {

struct PublishedBlocks {
    std::vector<uint8_t> packed_keys;
    std::vector<uint32_t> block_indexes;

    void add(const ChainKey &key, uint32_t part, uint32_t block_index) {
        append_block_key(packed_keys, key, part);
        block_indexes.push_back(block_index);
    }
    p2p_keys keys() const { return {packed_keys.data(), block_key_len, block_indexes.size()}; }
};

PublishedBlocks blocks_of(const Snapshot &snapshot) {
    PublishedBlocks blocks;
    for (uint32_t part = 0; part < snapshot.parts; ++part) blocks.add(snapshot.key, part, snapshot.first_block + part);
    return blocks;
}

}  // namespace

size_t BlockCache::KeyHash::operator()(const ChainKey &key) const {
    size_t hash;
    std::memcpy(&hash, key.data(), sizeof hash);
    return hash;
}

BlockCache::BlockCache(const Region &region, const Tier &tier)
    : region_(region), tier_(tier), taken_(region.num_blocks()) {}

const Snapshot *BlockCache::find(const ChainKey &key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    found->second->prompt = prompt_;
    return &found->second->snapshot;
}

void BlockCache::mark_used(const std::vector<ChainKey> &chain) {
    for (auto key = chain.rbegin(); key != chain.rend(); ++key) {
        const auto found = index_.find(*key);
        if (found != index_.end()) entries_.splice(entries_.begin(), entries_, found->second);
    }
}

std::optional<uint32_t> BlockCache::find_free_run(uint32_t parts) const {
    uint32_t free_in_a_row = 0;
    for (uint32_t block = 0; block < taken_.size(); ++block) {
        free_in_a_row = taken_[block] ? 0 : free_in_a_row + 1;
        if (free_in_a_row == parts) return block + 1 - parts;
    }
    return std::nullopt;
}

std::optional<BlockRun> BlockCache::reserve(uint32_t parts) {
    auto first_block = find_free_run(parts);
    for (auto entry = entries_.end(); !first_block && entry != entries_.begin();) {
        --entry;
        if (entry->prompt == prompt_) continue;
        const auto newer = std::next(entry);
        if (!give_up(entry)) continue;
        entry = newer;
        first_block = find_free_run(parts);
    }
    if (!first_block) return std::nullopt;
    for (uint32_t part = 0; part < parts; ++part) taken_[*first_block + part] = true;
    return BlockRun{*first_block, parts};
}

void BlockCache::release(BlockRun run) {
    for (uint32_t part = 0; part < run.parts; ++part) taken_[run.first_block + part] = false;
}

void BlockCache::publish(const ChainKey &key, BlockRun run) {
    const Snapshot snapshot{key, run.first_block, run.parts};
    const PublishedBlocks blocks = blocks_of(snapshot);
    const p2p_keys keys = blocks.keys();
    checked("p2p_publish", p2p_publish(tier_.handle(), &keys, blocks.block_indexes.data()));
    entries_.push_front({snapshot, prompt_});
    index_[key] = entries_.begin();
}

// False when a peer is reading the snapshot: it stays as it was.
bool BlockCache::give_up(Entries::iterator entry) {
    const Snapshot snapshot = entry->snapshot;
    const PublishedBlocks blocks = blocks_of(snapshot);
    const p2p_keys keys = blocks.keys();
    // All of its parts or none: while one of them is being read, the directory keeps them all.
    if (checked("p2p_unpublish", p2p_unpublish(tier_.handle(), &keys, nullptr)) == P2P_STATUS_BUSY) return false;
    release({snapshot.first_block, snapshot.parts});
    index_.erase(snapshot.key);
    entries_.erase(entry);
    return true;
}

size_t BlockCache::forget_all() {
    for (auto entry = entries_.begin(); entry != entries_.end();) give_up(entry++);
    return entries_.size();
}
