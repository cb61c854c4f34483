// One prompt from its tokens to its text: take what is held, pull what peers have, evaluate the rest, publish, go on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "block_cache.h"
#include "engine.h"
#include "journal.h"
#include "puller.h"
#include "sharing.h"

struct RunReport {
    uint32_t prompt_tokens = 0;
    uint32_t chunks = 0;            // whole chunks of the prompt
    uint32_t held_chunks = 0;       // restored from this process's own region
    uint32_t pulled_chunks = 0;     // pulled from peers and restored
    uint32_t evaluated_tokens = 0;  // the last one, which is always evaluated by itself, included
    uint32_t published = 0;         // snapshots captured here
    PullReport pull;
    double restore_ms = 0;
    double evaluate_ms = 0;
    double first_token_ms = 0;  // from the start to the first new token
    std::vector<llama_token> tokens;
    std::string text;
};

// What a run shares through; all or nothing.
struct SharingParts {
    const Sharing *sharing;
    BlockCache *cache;
    Puller *puller;  // null when no peers are named
};

class Runner {
public:
    // `parts` null: nothing is shared.
    Runner(Engine &engine, uint32_t chunk_tokens, std::string key_root, const SharingParts *parts,
           const Journal &journal);

    // `new_tokens` 0: the prompt is evaluated and published, nothing is generated.
    RunReport run(const std::vector<llama_token> &prompt, uint32_t new_tokens);

private:
    using Clock = std::chrono::steady_clock;

    uint32_t restore_held(const std::vector<ChainKey> &keys, uint32_t held, RunReport &report);
    uint32_t pull_and_restore(const std::vector<ChainKey> &keys, uint32_t held, RunReport &report);
    uint32_t restore(const std::vector<ChainKey> &keys, const std::vector<uint32_t> &prefixes, uint32_t held,
                     RunReport &report);
    void evaluate_from(const std::vector<llama_token> &prompt, const std::vector<ChainKey> &keys, uint32_t held,
                       RunReport &report);
    bool capture(const ChainKey &key, uint32_t prefix);
    void generate(const std::vector<llama_token> &prompt, uint32_t new_tokens, Clock::time_point start,
                  RunReport &report);

    Engine &engine_;
    const uint32_t chunk_tokens_;
    const std::string key_root_;
    const SharingParts *parts_;
    const Journal &journal_;
};
