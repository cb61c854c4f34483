// The consumer's side: asks peers for snapshots, chooses one, pulls into the block cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
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
    std::string id() const { return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port); }
};

struct PullSettings {
    std::vector<PeerAddress> peers;
    uint64_t peer_wait_ms;     // how long a peer may take to answer a lookup, connecting included
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
    Puller(const Tier &tier, BlockCache &cache, const Sharing &sharing, const PullSettings &settings, const Journal &journal);

    // Snapshots for some of `wanted` (which are useful in the sense of Sharing, in that order), now in the block cache.
    // Gives indexes into `wanted`, in the order of restoring; empty when no peer had anything or all failed. Every
    // failure has been told to the journal, and added to the report.
    std::vector<size_t> pull(const std::vector<ChainKey> &wanted, PullReport &report);

private:
    using Clock = std::chrono::steady_clock;
    struct Peer {
        PeerAddress address;
        Clock::time_point rests_until{};
    };
    // One peer's answer to the question which of the wanted snapshots it has.
    struct Ask {
        Peer *peer;
        std::unique_ptr<Request> request;
        std::vector<uint8_t> packed_keys;
        std::vector<uint32_t> states;
        bool answered = false;
        std::vector<size_t> picked;
    };
    enum class Landed { whole, not_whole, unsafe_to_reuse };

    std::vector<Ask> ask_peers(const std::vector<ChainKey> &wanted);
    void wait_for_answers(std::vector<Ask> &asks, size_t wanted);
    void read_answer(Ask &ask) const;
    void tell_empty_handed(const Ask &ask);
    std::vector<size_t> load_picked(Ask &ask, const std::vector<ChainKey> &wanted, PullReport &report);
    Landed load(Ask &ask, const std::vector<uint8_t> &packed_keys, const std::vector<uint32_t> &block_indexes, PullReport &report);
    bool settle(Ask &ask, const ChainKey &key, BlockRun run, PullReport &report);
    std::optional<BlockRun> load_rest(Ask &ask, const ChainKey &key, BlockRun head, uint32_t parts, PullReport &report);
    bool has_all(const Request &request, const std::vector<uint8_t> &packed_keys) const;
    void let_rest(Peer &peer, const std::string &why);
    std::string state_of(const Peer &peer) const;

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
