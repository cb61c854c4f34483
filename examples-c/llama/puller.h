// The consumer's side: asks a peer for snapshots and pulls them into the block cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "block_cache.h"
#include "journal.h"
#include "sharing.h"
#include "tier.h"

struct PeerAddress {
    std::string host;
    uint32_t port;
    std::string id() const {
        return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
    }
};

struct PullSettings {
    std::vector<PeerAddress> peers;
    uint64_t peer_wait_ms;  // how long a peer may take to connect, and again to answer a lookup
    uint64_t load_timeout_ms;
};

struct PullReport {
    std::string peer;  // the last one that gave something
    uint32_t snapshots = 0;
    uint64_t bytes = 0;
    double lookup_ms = 0;
    double load_ms = 0;
    uint32_t failures = 0;  // loads that were begun and did not end well
    double failed_ms = 0;   // from the beginning of such a load to the news of its end
};

class Puller {
public:
    Puller(const Tier &tier, BlockCache &cache, const Sharing &sharing, const PullSettings &settings,
           const Journal &journal);

    size_t peers() const { return peers_.size(); }
    // Snapshots for some of `wanted` (useful prefixes in the sense of Sharing, in that order) from one peer, now in the
    // block cache. Gives indexes into `wanted`, in the order of restoring; empty when the peer had none or failed. What
    // went wrong has been told to the journal.
    std::vector<size_t> pull(size_t peer, const std::vector<ChainKey> &wanted, PullReport &report);

private:
    using Clock = std::chrono::steady_clock;
    struct Peer {
        PeerAddress address;
        Clock::time_point rests_until{};
    };
    // Blocks of the region and the keys of what belongs into them.
    struct Order {
        std::vector<uint8_t> packed_keys;
        std::vector<uint32_t> block_indexes;
        void add(const ChainKey &key, uint32_t first_part, BlockRun run);
    };
    enum class Landed { whole, not_whole, unsafe_to_reuse };

    std::optional<std::vector<uint32_t>> look_up(Peer &peer, const Request &request,
                                                 const std::vector<uint8_t> &packed_keys);
    std::vector<size_t> pick(const std::vector<uint32_t> &states) const;
    std::vector<BlockRun> reserve(size_t snapshots);
    Landed load(Peer &peer, const Request &request, const Order &order, PullReport &report);
    std::optional<p2p_job_result> wait_for(uint64_t job_id);
    bool settle(Peer &peer, const Request &request, const ChainKey &key, BlockRun run, PullReport &report);
    std::optional<BlockRun> load_rest(Peer &peer, const Request &request, const ChainKey &key, BlockRun head,
                                      uint32_t parts, PullReport &report);
    void let_rest(Peer &peer, const std::string &why);

    const Tier &tier_;
    BlockCache &cache_;
    const Sharing &sharing_;
    const PullSettings settings_;
    const Journal &journal_;
    const uint32_t known_parts_;  // of every snapshot; 1 when only its header will tell
    std::vector<Peer> peers_;
    const std::string id_prefix_;
    uint64_t next_id_ = 1;
};
