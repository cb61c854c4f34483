#include "puller.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

namespace {

// A peer that failed is left alone this long, so that one that is gone does not slow every prompt.
constexpr std::chrono::seconds peer_rest{5};
constexpr std::chrono::microseconds lookup_poll{50};
// The library ends every load in its own time (the load's timeout, then an abort); this is only the end of patience.
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

p2p_keys view_of(const std::vector<uint8_t> &packed) { return {packed.data(), block_key_len, packed.size() / block_key_len}; }

}  // namespace

Puller::Puller(const Tier &tier, BlockCache &cache, const Sharing &sharing, const PullSettings &settings, const Journal &journal)
    : tier_(tier), cache_(cache), sharing_(sharing), settings_(settings), journal_(journal),
      known_parts_(parts_to_ask_for(sharing, cache.region())), id_prefix_(random_id_prefix(tier.id())) {
    for (const PeerAddress &address : settings.peers) peers_.push_back({address});
}

std::vector<size_t> Puller::pull(const std::vector<ChainKey> &wanted, PullReport &report) {
    const auto start = Clock::now();
    std::vector<Ask> asks = ask_peers(wanted);
    wait_for_answers(asks, wanted.size());
    report.lookup_ms += ms_since(start);

    for (const Ask &ask : asks)
        if (ask.picked.empty()) tell_empty_handed(ask);
    const auto better = [](const Ask &a, const Ask &b) {
        return std::make_pair(a.picked.size(), a.picked.empty() ? 0 : a.picked.back()) >
               std::make_pair(b.picked.size(), b.picked.empty() ? 0 : b.picked.back());
    };
    std::stable_sort(asks.begin(), asks.end(), better);
    for (Ask &ask : asks) {
        if (ask.picked.empty()) break;
        std::vector<size_t> landed = load_picked(ask, wanted, report);
        if (!landed.empty()) return landed;
    }
    return {};
}

std::vector<Puller::Ask> Puller::ask_peers(const std::vector<ChainKey> &wanted) {
    std::vector<uint8_t> packed;
    for (const ChainKey &key : wanted)
        for (uint32_t part = 0; part < known_parts_; ++part) append_block_key(packed, key, part);

    std::vector<Ask> asks;
    for (Peer &peer : peers_) {
        if (Clock::now() < peer.rests_until) continue;
        try {
            Ask ask{&peer, std::make_unique<Request>(tier_, id_prefix_ + std::to_string(next_id_++), peer.address.host, peer.address.port),
                    packed, std::vector<uint32_t>(packed.size() / block_key_len), false, {}};
            read_answer(ask);
            asks.push_back(std::move(ask));
        } catch (const P2pError &error) {
            let_rest(peer, error.what());
        }
    }
    checked("p2p_flush_lookups", p2p_flush_lookups(tier_.handle()));
    return asks;
}

// Until each peer has answered or had its time, or one has everything.
void Puller::wait_for_answers(std::vector<Ask> &asks, size_t wanted) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(settings_.peer_wait_ms);
    for (;;) {
        bool all_answered = true;
        for (Ask &ask : asks) {
            if (!ask.answered) read_answer(ask);
            all_answered = all_answered && ask.answered;
            if (ask.answered && ask.picked.size() == wanted) return;
        }
        if (all_answered || Clock::now() >= deadline) return;
        std::this_thread::sleep_for(lookup_poll);
    }
}

void Puller::read_answer(Ask &ask) const {
    const p2p_keys keys = view_of(ask.packed_keys);
    checked("p2p_lookup", p2p_lookup(ask.request->handle(), &keys, ask.states.data()));
    ask.answered = std::find(ask.states.begin(), ask.states.end(), uint32_t{P2P_LOOKUP_RETRY}) == ask.states.end();
    if (!ask.answered) return;

    std::vector<bool> available;
    for (auto part = ask.states.begin(); part != ask.states.end(); part += known_parts_)
        available.push_back(std::all_of(part, part + known_parts_, [](uint32_t state) { return state == P2P_LOOKUP_HIT; }));
    ask.picked = sharing_.pick(available);
}

// A miss may mean that the peer does not have the prefix, or that it could not be asked.
void Puller::tell_empty_handed(const Ask &ask) {
    if (!ask.answered) {
        let_rest(*ask.peer, "no answer within " + std::to_string(settings_.peer_wait_ms) + " ms (" + state_of(*ask.peer) + ")");
        return;
    }
    const std::string state = state_of(*ask.peer);
    if (state == "ready") journal_.note("peer " + ask.peer->address.id() + " has nothing of what is missing");
    else let_rest(*ask.peer, state);
}

// Reserves room for as many of the picked snapshots as fit, pulls them in one load, and publishes them here.
std::vector<size_t> Puller::load_picked(Ask &ask, const std::vector<ChainKey> &wanted, PullReport &report) {
    std::vector<uint8_t> packed;
    std::vector<uint32_t> block_indexes;
    std::vector<BlockRun> runs;
    for (const size_t i : ask.picked) {
        const auto run = cache_.reserve(known_parts_);
        if (!run) break;
        runs.push_back(*run);
        for (uint32_t part = 0; part < known_parts_; ++part) {
            append_block_key(packed, wanted[i], part);
            block_indexes.push_back(run->first_block + part);
        }
    }
    if (runs.size() < ask.picked.size())
        journal_.note("the region has room for " + std::to_string(runs.size()) + " of " + std::to_string(ask.picked.size()) +
                      " snapshots of this prompt; give it more blocks");
    if (runs.empty()) return {};
    journal_.event(JsonLine("pulling").add("peer", ask.peer->address.id()).add("snapshots", uint64_t{runs.size()}));

    const Landed landed = load(ask, packed, block_indexes, report);
    std::vector<size_t> settled;
    for (size_t i = 0; i < runs.size(); ++i) {
        if (landed == Landed::whole && settled.size() == i && settle(ask, wanted[ask.picked[i]], runs[i], report))
            settled.push_back(ask.picked[i]);
        else if (landed == Landed::not_whole)
            cache_.release(runs[i]);
    }
    if (!settled.empty()) report.peer = ask.peer->address.id();
    report.snapshots += static_cast<uint32_t>(settled.size());
    return settled;
}

Puller::Landed Puller::load(Ask &ask, const std::vector<uint8_t> &packed_keys, const std::vector<uint32_t> &block_indexes, PullReport &report) {
    const auto start = Clock::now();
    const uint64_t job_id = next_id_++;
    const p2p_keys keys = view_of(packed_keys);
    checked("p2p_submit_load", p2p_submit_load(ask.request->handle(), job_id, &keys, block_indexes.data()));

    p2p_job_result result;
    std::memset(&result, 0, sizeof result);
    size_t count = 0;
    const auto give_up_at = start + std::chrono::milliseconds(settings_.load_timeout_ms + abort_grace_ms);
    while (count == 0 && Clock::now() < give_up_at) {
        checked("p2p_wait_finished", p2p_wait_finished(tier_.handle(), &result, sizeof result, 1, abort_grace_ms, &count));
        if (count == 1 && result.job_id != job_id) count = 0;  // a late one of an earlier pull
    }
    if (count == 1 && result.outcome == P2P_OUTCOME_DONE) {
        report.bytes += result.bytes;
        report.load_ms += ms_since(start);
        return Landed::whole;
    }
    ++report.failures;
    report.failed_ms += ms_since(start);
    if (count == 0) {
        let_rest(*ask.peer, "the load did not end in time");
        return Landed::unsafe_to_reuse;
    }
    let_rest(*ask.peer, std::string("the load ended in ") + p2p_outcome_name(result.outcome) + ": " + result.detail);
    // Blocks that a late write may still hit are never used again: this program has few failures and no use for them.
    return (result.flags & P2P_JOB_MAY_STILL_BE_WRITTEN) ? Landed::unsafe_to_reuse : Landed::not_whole;
}

// Looks at what landed in the run, pulls what is missing of it, and publishes it. False: the run is free again.
bool Puller::settle(Ask &ask, const ChainKey &key, BlockRun run, PullReport &report) {
    const auto header = read_snapshot_header(cache_.region().block(run.first_block), cache_.region().block_len());
    std::optional<BlockRun> complete;
    if (!header)
        let_rest(*ask.peer, "what came is not a snapshot of this program");
    else if (header->parts == run.parts)
        complete = run;
    else
        complete = load_rest(ask, key, run, header->parts, report);
    if (!complete) {
        cache_.release(run);
        return false;
    }
    cache_.publish(key, *complete);
    return true;
}

// The head is here and tells how many parts there are: moves it into a run of that length and pulls the others there.
// Frees the head's own run when it succeeds.
std::optional<BlockRun> Puller::load_rest(Ask &ask, const ChainKey &key, BlockRun head, uint32_t parts, PullReport &report) {
    const auto run = cache_.reserve(parts);
    if (!run) {
        journal_.note("the region has no room for a snapshot of " + std::to_string(parts) + " blocks; give it more blocks");
        return std::nullopt;
    }
    std::memcpy(cache_.region().block(run->first_block), cache_.region().block(head.first_block), cache_.region().block_len());

    std::vector<uint8_t> packed;
    std::vector<uint32_t> block_indexes;
    for (uint32_t part = 1; part < parts; ++part) {
        append_block_key(packed, key, part);
        block_indexes.push_back(run->first_block + part);
    }
    Landed landed = Landed::not_whole;
    if (has_all(*ask.request, packed)) landed = load(ask, packed, block_indexes, report);
    else journal_.note("peer " + ask.peer->address.id() + " gave up the rest of a snapshot before it could be pulled");
    if (landed == Landed::whole) {
        cache_.release(head);
        return run;
    }
    if (landed == Landed::not_whole) cache_.release(*run);
    return std::nullopt;
}

bool Puller::has_all(const Request &request, const std::vector<uint8_t> &packed_keys) const {
    const p2p_keys keys = view_of(packed_keys);
    std::vector<uint32_t> states(keys.count);
    checked("p2p_lookup", p2p_lookup(request.handle(), &keys, states.data()));
    checked("p2p_flush_lookups", p2p_flush_lookups(tier_.handle()));
    const auto any = [&](uint32_t state) { return std::find(states.begin(), states.end(), state) != states.end(); };
    const auto deadline = Clock::now() + std::chrono::milliseconds(settings_.peer_wait_ms);
    while (any(P2P_LOOKUP_RETRY) && Clock::now() < deadline) {
        std::this_thread::sleep_for(lookup_poll);
        checked("p2p_lookup", p2p_lookup(request.handle(), &keys, states.data()));
    }
    return !any(P2P_LOOKUP_RETRY) && !any(P2P_LOOKUP_MISS);
}

void Puller::let_rest(Peer &peer, const std::string &why) {
    peer.rests_until = Clock::now() + peer_rest;
    journal_.note("peer " + peer.address.id() + ": " + why + "; not asked again for " + std::to_string(peer_rest.count()) + " s");
}

std::string Puller::state_of(const Peer &peer) const {
    std::vector<p2p_peer_info> infos(peers_.size() + 16);
    size_t count = 0;
    checked("p2p_peers", p2p_peers(tier_.handle(), infos.data(), sizeof(p2p_peer_info), infos.size(), &count));
    for (size_t i = 0; i < std::min(count, infos.size()); ++i) {
        if (peer.address.id() != infos[i].peer_id) continue;
        if (infos[i].state == P2P_PEER_READY) return "ready";
        const char *state = infos[i].state == P2P_PEER_CONNECTING ? "connecting"
                            : infos[i].state == P2P_PEER_HANDSHAKE ? "in the handshake"
                            : infos[i].state == P2P_PEER_DRAINING  ? "draining"
                                                                   : "backing off";
        return std::string(state) + (infos[i].detail[0] ? std::string(": ") + infos[i].detail : std::string());
    }
    return "no session";
}
