#include "puller.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace {

// A peer that failed is left alone this long, so that one that is gone does not slow every prompt.
constexpr std::chrono::seconds peer_rest{5};
// The library ends lookups and loads in its own time, and then knows why: a lookup after the handshake's and its own
// timeout, a load after its timeout and an abort. These are only the end of patience.
constexpr uint64_t lookup_grace_ms = 1000;
constexpr uint64_t abort_grace_ms = 15000;

double ms_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// kv_request_ids must not repeat, also not those of an earlier process at the same address.
std::string random_id_prefix(const std::string &tier_id) {
    std::random_device device;
    return tier_id + "/" + std::to_string(device()) + "/";
}

uint32_t parts_to_ask_for(const Sharing &sharing, const Region &region) {
    const uint64_t known = sharing.known_state_bytes();
    return known == 0 ? 1 : parts_for(known, region.block_len());
}

p2p_keys view_of(const std::vector<uint8_t> &packed) {
    return {packed.data(), block_key_len, packed.size() / block_key_len};
}

}  // namespace

Puller::Puller(const Tier &tier, BlockCache &cache, const Sharing &sharing, const PullSettings &settings,
               const Journal &journal)
    : tier_(tier),
      cache_(cache),
      sharing_(sharing),
      settings_(settings),
      journal_(journal),
      known_parts_(parts_to_ask_for(sharing, cache.region())),
      id_prefix_(random_id_prefix(tier.id())) {
    for (const PeerAddress &address : settings.peers) peers_.push_back({address, {}});
}

void Puller::Order::add(const ChainKey &key, uint32_t first_part, BlockRun run) {
    for (uint32_t part = first_part; part < run.parts; ++part) {
        append_block_key(packed_keys, key, part);
        block_indexes.push_back(run.first_block + part);
    }
}

std::vector<size_t> Puller::pull(size_t index, const std::vector<ChainKey> &wanted, PullReport &report) {
    Peer &peer = peers_[index];
    if (Clock::now() < peer.rests_until) return {};
    const auto start = Clock::now();
    std::vector<uint8_t> packed_keys;
    for (const ChainKey &key : wanted)
        for (uint32_t part = 0; part < known_parts_; ++part) append_block_key(packed_keys, key, part);
    const Request request(tier_, id_prefix_ + std::to_string(next_id_++), peer.address.host, peer.address.port);
    const auto states = look_up(peer, request, packed_keys);
    report.lookup_ms += ms_since(start);
    if (!states) return {};
    std::vector<size_t> picked = pick(*states);
    const std::vector<BlockRun> runs = reserve(picked.size());
    picked.resize(runs.size());
    if (picked.empty()) return {};

    Order order;
    for (size_t i = 0; i < runs.size(); ++i) order.add(wanted[picked[i]], 0, runs[i]);
    journal_.event(JsonLine("pulling").add("peer", peer.address.id()).add("snapshots", uint64_t{runs.size()}));
    const Landed landed = load(peer, request, order, report);
    if (landed == Landed::unsafe_to_reuse) return {};
    size_t settled = 0;
    while (landed == Landed::whole && settled < runs.size() &&
           settle(peer, request, wanted[picked[settled]], runs[settled], report))
        ++settled;
    for (size_t i = settled; i < runs.size(); ++i) cache_.release(runs[i]);
    picked.resize(settled);
    if (settled > 0) report.peer = peer.address.id();
    report.snapshots += static_cast<uint32_t>(settled);
    return picked;
}

// What the peer has of these keys; nothing when it could not be asked.
std::optional<std::vector<uint32_t>> Puller::look_up(Peer &peer, const Request &request,
                                                     const std::vector<uint8_t> &packed_keys) {
    const p2p_keys keys = view_of(packed_keys);
    std::vector<uint32_t> states(keys.count);
    checked("p2p_lookup", p2p_lookup(request.handle(), &keys, states.data()));
    const uint64_t patience_ms = 2 * settings_.peer_wait_ms + lookup_grace_ms;
    if (checked("p2p_wait_lookups", p2p_wait_lookups(request.handle(), patience_ms)) == P2P_STATUS_TIMED_OUT) {
        let_rest(peer, "no answer within " + std::to_string(patience_ms) + " ms");
        return std::nullopt;
    }
    checked("p2p_lookup", p2p_lookup(request.handle(), &keys, states.data()));
    // Misses may be the peer's word, or all that is left of a request that could not reach it.
    if (const auto failure = request.failure()) {
        let_rest(peer, *failure);
        return std::nullopt;
    }
    if (std::find(states.begin(), states.end(), uint32_t{P2P_LOOKUP_HIT}) == states.end())
        journal_.note("peer " + peer.address.id() + " has nothing of what is missing");
    return states;
}

std::vector<size_t> Puller::pick(const std::vector<uint32_t> &states) const {
    std::vector<bool> available;
    for (auto part = states.begin(); part != states.end(); part += known_parts_)
        available.push_back(
            std::all_of(part, part + known_parts_, [](uint32_t state) { return state == P2P_LOOKUP_HIT; }));
    return sharing_.pick(available);
}

std::vector<BlockRun> Puller::reserve(size_t snapshots) {
    std::vector<BlockRun> runs;
    while (runs.size() < snapshots) {
        const auto run = cache_.reserve(known_parts_);
        if (!run) break;
        runs.push_back(*run);
    }
    if (runs.size() < snapshots)
        journal_.note("the region has room for " + std::to_string(runs.size()) + " of " + std::to_string(snapshots) +
                      " snapshots that could be pulled; give it more blocks");
    return runs;
}

// One load of one round. What it says of the blocks, when it failed, is whether anything can still write into them.
Puller::Landed Puller::load(Peer &peer, const Request &request, const Order &order, PullReport &report) {
    const auto start = Clock::now();
    const uint64_t job_id = next_id_++;
    const p2p_keys keys = view_of(order.packed_keys);
    checked("p2p_submit_load", p2p_submit_load(request.handle(), job_id, &keys, order.block_indexes.data()));
    const auto result = wait_for(job_id);
    if (result && result->outcome == P2P_OUTCOME_DONE) {
        report.bytes += result->bytes;
        report.load_ms += ms_since(start);
        return Landed::whole;
    }
    ++report.failures;
    report.failed_ms += ms_since(start);
    if (!result) {
        let_rest(peer, "a load did not end in time");
        return Landed::unsafe_to_reuse;
    }
    let_rest(peer, std::string("the load ended in ") + p2p_outcome_name(result->outcome) + ": " + result->detail);
    // Blocks that a late write may still hit are never used again: an engine with many failures would free them once
    // the peer is gone for certain.
    return (result->flags & P2P_JOB_MAY_STILL_BE_WRITTEN) ? Landed::unsafe_to_reuse : Landed::not_whole;
}

std::optional<p2p_job_result> Puller::wait_for(uint64_t job_id) {
    const uint64_t patience_ms = settings_.load_timeout_ms + abort_grace_ms;
    const auto deadline = Clock::now() + std::chrono::milliseconds(patience_ms);
    while (Clock::now() < deadline) {
        p2p_job_result result;
        size_t count = 0;
        checked("p2p_wait_finished", p2p_wait_finished(tier_.handle(), &result, sizeof result, 1, patience_ms, &count));
        if (count == 1 && result.job_id == job_id) return result;
    }
    return std::nullopt;
}

// Looks at what landed in the run, pulls what is missing of it, and publishes it. False: the run is not used.
bool Puller::settle(Peer &peer, const Request &request, const ChainKey &key, BlockRun run, PullReport &report) {
    const auto header = read_snapshot_header(cache_.region().block(run.first_block), cache_.region().block_len());
    if (!header) {
        let_rest(peer, "what came is not a snapshot of this program");
        return false;
    }
    if (header->parts != run.parts) {
        const auto longer = load_rest(peer, request, key, run, header->parts, report);
        if (!longer) return false;
        cache_.release(run);
        run = *longer;
    }
    cache_.publish(key, run);
    return true;
}

// The head is here and tells how many parts there are: copies it into a run of that length and pulls the others there,
// in a second round of the same request.
std::optional<BlockRun> Puller::load_rest(Peer &peer, const Request &request, const ChainKey &key, BlockRun head,
                                          uint32_t parts, PullReport &report) {
    const auto run = cache_.reserve(parts);
    if (!run) {
        journal_.note("the region has no room for a snapshot of " + std::to_string(parts) +
                      " blocks; give it more blocks");
        return std::nullopt;
    }
    std::memcpy(cache_.region().block(run->first_block), cache_.region().block(head.first_block),
                cache_.region().block_len());
    Order order;
    order.add(key, 1, *run);
    const auto states = look_up(peer, request, order.packed_keys);
    Landed landed = Landed::not_whole;
    if (states &&
        std::count(states->begin(), states->end(), uint32_t{P2P_LOOKUP_HIT}) == static_cast<ptrdiff_t>(states->size()))
        landed = load(peer, request, order, report);
    if (landed == Landed::whole) return run;
    if (landed == Landed::not_whole) cache_.release(*run);
    return std::nullopt;
}

void Puller::let_rest(Peer &peer, const std::string &why) {
    peer.rests_until = Clock::now() + peer_rest;
    journal_.note("peer " + peer.address.id() + ": " + why + "; not asked again for " +
                  std::to_string(peer_rest.count()) + " s");
}
