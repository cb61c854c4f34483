// Which snapshots the region holds: an LRU over the library's block directory. What is published here, peers can pull
// without this process being asked; so a block is only used again once p2p_unpublish has given it back.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "snapshot.h"
#include "tier.h"

// Adjacent blocks that belong to nobody else: neither published nor in another run.
struct BlockRun {
    uint32_t first_block;
    uint32_t parts;
};

class BlockCache {
public:
    BlockCache(const Region &region, const Tier &tier);

    const Region &region() const { return region_; }
    size_t snapshots() const { return index_.size(); }

    // Snapshots found or published from now on stay until the next call.
    void begin_prompt() { ++prompt_; }
    const Snapshot *find(const ChainKey &key);
    // Makes these the most recently used, the first of them last to go: without the beginning of a chain the rest is
    // of no use.
    void mark_used(const std::vector<ChainKey> &chain);

    // Free blocks, made by giving up the least recently used snapshots that no peer is reading and this prompt does
    // not use. Nothing when that is not enough.
    std::optional<BlockRun> reserve(uint32_t parts);
    void release(BlockRun run);
    // Makes the run's blocks, now filled, findable for peers and for this process.
    void publish(const ChainKey &key, BlockRun run);
    // Gives up every snapshot; says how many stay because a peer is reading them.
    size_t forget_all();

private:
    struct Entry {
        Snapshot snapshot;
        uint64_t prompt;
    };
    using Entries = std::list<Entry>;  // most recently used first
    struct KeyHash {
        size_t operator()(const ChainKey &key) const;
    };

    std::optional<uint32_t> find_free_run(uint32_t parts) const;
    bool give_up(Entries::iterator entry);

    const Region &region_;
    const Tier &tier_;
    std::vector<bool> taken_;
    Entries entries_;
    std::unordered_map<ChainKey, Entries::iterator, KeyHash> index_;
    uint64_t prompt_ = 0;
};
