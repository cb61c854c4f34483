#include "runner.h"

#include <stdexcept>

namespace {
double ms_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
}  // namespace

Runner::Runner(Engine &engine, uint32_t chunk_tokens, std::string key_root, const SharingParts *parts,
               const Journal &journal)
    : engine_(engine), chunk_tokens_(chunk_tokens), key_root_(std::move(key_root)), parts_(parts), journal_(journal) {}

RunReport Runner::run(const std::vector<llama_token> &prompt, uint32_t new_tokens) {
    if (prompt.empty()) throw std::runtime_error("the prompt has no tokens");
    if (prompt.size() + new_tokens > engine_.context_tokens())
        throw std::runtime_error("the prompt has " + std::to_string(prompt.size()) + " tokens; with " +
                                 std::to_string(new_tokens) + " new ones that is more than the context of " +
                                 std::to_string(engine_.context_tokens()));
    const auto start = Clock::now();
    RunReport report;
    report.prompt_tokens = static_cast<uint32_t>(prompt.size());
    const std::vector<ChainKey> keys = chain_keys(key_root_, prompt, chunk_tokens_);
    report.chunks = static_cast<uint32_t>(keys.size());

    engine_.clear();
    uint32_t held = 0;
    if (parts_) {
        parts_->cache->begin_prompt();
        held = restore_held(keys, held, report);
        if (parts_->puller) held = pull_and_restore(keys, held, report);
    }
    evaluate_from(prompt, keys, held, report);
    if (parts_) parts_->cache->mark_used(keys);
    if (new_tokens > 0) generate(prompt, new_tokens, start, report);
    return report;
}

// `held` and what is returned: how many chunks, from the start, the engine has.
uint32_t Runner::restore_held(const std::vector<ChainKey> &keys, uint32_t held, RunReport &report) {
    const std::vector<uint32_t> useful = parts_->sharing->useful(held, report.chunks);
    std::vector<bool> available;
    for (const uint32_t prefix : useful) available.push_back(parts_->cache->find(keys[prefix - 1]) != nullptr);
    std::vector<uint32_t> prefixes;
    for (const size_t i : parts_->sharing->pick(available)) prefixes.push_back(useful[i]);
    report.held_chunks = restore(keys, prefixes, held, report);
    return report.held_chunks;
}

// Each peer in turn, for what is still missing.
uint32_t Runner::pull_and_restore(const std::vector<ChainKey> &keys, uint32_t held, RunReport &report) {
    for (size_t peer = 0; peer < parts_->puller->peers(); ++peer) {
        const std::vector<uint32_t> useful = parts_->sharing->useful(held, report.chunks);
        if (useful.empty()) break;
        std::vector<ChainKey> wanted;
        for (const uint32_t prefix : useful) wanted.push_back(keys[prefix - 1]);
        std::vector<uint32_t> prefixes;
        for (const size_t i : parts_->puller->pull(peer, wanted, report.pull)) prefixes.push_back(useful[i]);
        const uint32_t now_held = restore(keys, prefixes, held, report);
        if (now_held > held) report.pulled_chunks += now_held - held;
        held = now_held;
    }
    return held;
}

// Copies snapshots out of the region, straight into the engine.
uint32_t Runner::restore(const std::vector<ChainKey> &keys, const std::vector<uint32_t> &prefixes, uint32_t held,
                         RunReport &report) {
    const auto start = Clock::now();
    const Region &region = parts_->cache->region();
    for (const uint32_t prefix : prefixes) {
        const Snapshot *snapshot = parts_->cache->find(keys[prefix - 1]);
        const uint8_t *block = snapshot ? region.block(snapshot->first_block) : nullptr;
        const auto header = block ? read_snapshot_header(block, region.block_len()) : std::nullopt;
        const bool restored =
            header && header->parts == snapshot->parts && header->end_token == prefix * chunk_tokens_ &&
            parts_->sharing->restore(engine_, block + sizeof(SnapshotHeader), header->state_bytes, prefix);
        if (!restored) {
            journal_.note("the engine does not take the state of the first " + std::to_string(prefix) +
                          " chunks; evaluating instead");
            held = parts_->sharing->held_after_failure(held);
            break;
        }
        held = prefix;
    }
    report.restore_ms += ms_since(start);
    return held;
}

// Always chunk by chunk, whoever evaluated what lies before: so every token is evaluated in the same company
// everywhere, and a pulled prefix leads to the same bits, not only to nearly the same numbers.
void Runner::evaluate_from(const std::vector<llama_token> &prompt, const std::vector<ChainKey> &keys, uint32_t held,
                           RunReport &report) {
    const auto start = Clock::now();
    const auto last = static_cast<uint32_t>(prompt.size()) - 1;
    const std::vector<uint32_t> useful =
        parts_ ? parts_->sharing->useful(held, report.chunks) : std::vector<uint32_t>();
    auto next_useful = useful.begin();
    bool room = true;
    for (uint32_t prefix = held + 1; prefix <= report.chunks; ++prefix) {
        engine_.evaluate(prompt, (prefix - 1) * chunk_tokens_, prefix * chunk_tokens_);
        report.evaluated_tokens += chunk_tokens_;
        if (next_useful == useful.end() || *next_useful != prefix) continue;
        ++next_useful;
        parts_->sharing->reached(engine_);
        room = room && capture(keys[prefix - 1], prefix);
        if (room) ++report.published;
    }
    const uint32_t tail = report.chunks * chunk_tokens_;
    if (tail < last) {
        engine_.evaluate(prompt, tail, last);
        report.evaluated_tokens += last - tail;
    }
    report.evaluate_ms += ms_since(start);
}

// Copies the engine's state straight into the region and publishes it. False when there is no room for it.
bool Runner::capture(const ChainKey &key, uint32_t prefix) {
    BlockCache &cache = *parts_->cache;
    if (cache.find(key)) return true;
    const Engine::StateView view = parts_->sharing->view(engine_, prefix);
    const size_t state_bytes = view.size();
    const uint32_t parts = parts_for(state_bytes, cache.region().block_len());
    const auto run = cache.reserve(parts);
    if (!run) {
        journal_.note("the region has no room for the snapshot of chunk " + std::to_string(prefix) +
                      "; give it more blocks");
        return false;
    }
    uint8_t *block = cache.region().block(run->first_block);
    write_snapshot_header(block, state_bytes, parts, parts_->sharing->first_token(prefix), prefix * chunk_tokens_);
    if (!view.copy_to(block + sizeof(SnapshotHeader), state_bytes)) {
        cache.release(*run);
        journal_.note("the engine did not give the state of chunk " + std::to_string(prefix));
        return false;
    }
    cache.publish(key, *run);
    return true;
}

void Runner::generate(const std::vector<llama_token> &prompt, uint32_t new_tokens, Clock::time_point start,
                      RunReport &report) {
    const auto evaluation = Clock::now();
    auto position = static_cast<uint32_t>(prompt.size()) - 1;
    llama_token token = engine_.evaluate_last(prompt[position], position);
    ++report.evaluated_tokens;
    report.evaluate_ms += ms_since(evaluation);
    report.first_token_ms = ms_since(start);
    while (report.tokens.size() < new_tokens && !engine_.ends_generation(token)) {
        report.tokens.push_back(token);
        report.text += engine_.text_of(token);
        if (report.tokens.size() < new_tokens) token = engine_.evaluate_last(token, ++position);
    }
}
