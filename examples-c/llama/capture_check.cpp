#include "capture_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

constexpr const char *sample_text =
    "A cache is a promise about the past: what was computed once need not be computed again, as long as nothing that "
    "it depends on has changed. A server that reads a long question keeps, for every word, the keys and values that "
    "its layers will want when the next word is chosen. Two servers that read the same question keep the same numbers. "
    "The second could have asked the first for them, and spent the time on its answer instead.\n";

constexpr uint32_t continuation_tokens = 16;

struct Continuation {
    std::vector<float> logits;
    std::vector<llama_token> tokens;
};

// The sample, long enough that a sliding window has moved past the first chunk, and ending inside a chunk.
std::vector<llama_token> sample_tokens(Engine &engine, uint32_t chunk_tokens) {
    const uint32_t wanted = engine.sliding_window() + 2 * chunk_tokens + chunk_tokens / 2 + 1;
    const uint32_t count = std::min(wanted, engine.context_tokens() - continuation_tokens);
    std::string text;
    std::vector<llama_token> tokens;
    while (tokens.size() < count) {
        text += sample_text;
        tokens = engine.tokenize(text);
    }
    tokens.resize(count);
    return tokens;
}

// Evaluates what lies behind the last whole chunk and goes on from there.
Continuation go_on(Engine &engine, const std::vector<llama_token> &tokens, uint32_t shared) {
    const auto last = static_cast<uint32_t>(tokens.size()) - 1;
    if (shared < last) engine.evaluate(tokens, shared, last);
    llama_token next = engine.evaluate_last(tokens[last], last);
    Continuation continuation{engine.logits(), {next}};
    for (uint32_t i = 1; i < continuation_tokens; ++i) {
        next = engine.evaluate_last(next, last + i);
        continuation.tokens.push_back(next);
    }
    return continuation;
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float largest_difference(const std::vector<float> &a, const std::vector<float> &b) {
    float largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
    return largest;
}

class CaptureCheck {
public:
    CaptureCheck(Engine &engine, uint32_t chunk_tokens)
        : engine_(engine),
          chunk_tokens_(chunk_tokens),
          tokens_(sample_tokens(engine, chunk_tokens)),
          shared_((static_cast<uint32_t>(tokens_.size()) - 1) / chunk_tokens * chunk_tokens) {}

    CaptureVerdict run(bool allow_chunked) {
        evaluate_and_capture(allow_chunked);
        evaluated_ = go_on(engine_, tokens_, shared_);
        CaptureVerdict verdict =
            allow_chunked ? try_chunks() : CaptureVerdict{CaptureMode::none, "chunks were not asked for", 0};
        if (verdict.mode == CaptureMode::none) verdict = try_whole(verdict.reason);
        engine_.clear();
        return verdict;
    }

private:
    void evaluate_and_capture(bool chunks_too) {
        engine_.clear();
        for (uint32_t first = 0; first < shared_; first += chunk_tokens_) {
            engine_.evaluate(tokens_, first, first + chunk_tokens_);
            if (chunks_too) chunks_.push_back(captured(engine_.view_chunk(first, first + chunk_tokens_)));
        }
        whole_ = captured(engine_.view_whole());
    }

    static std::vector<uint8_t> captured(const Engine::StateView &view) {
        std::vector<uint8_t> bytes(view.size());
        if (!view.copy_to(bytes.data(), bytes.size())) bytes.clear();
        return bytes;
    }

    CaptureVerdict try_chunks() {
        engine_.clear();
        for (uint32_t i = 0; i < chunks_.size(); ++i) {
            const std::vector<uint8_t> &chunk = chunks_[i];
            if (!engine_.restore_chunk(chunk.data(), chunk.size(), i * chunk_tokens_, (i + 1) * chunk_tokens_))
                return {CaptureMode::none, "the engine does not take back the state of chunk " + std::to_string(i), 0};
        }
        const Continuation restored = go_on(engine_, tokens_, shared_);
        if (!same_bits(restored.logits, evaluated_.logits))
            return {CaptureMode::none,
                    "logits after restoring chunks differ by up to " +
                        std::to_string(largest_difference(restored.logits, evaluated_.logits)),
                    0};
        return {CaptureMode::chunked, "logits after restoring chunks equal the evaluated ones bit for bit",
                chunks_.front().size()};
    }

    CaptureVerdict try_whole(const std::string &why_not_chunks) {
        Continuation restored[2];
        for (Continuation &continuation : restored) {
            if (!engine_.restore_whole(whole_.data(), whole_.size(), shared_))
                return {CaptureMode::none, why_not_chunks + "; nor does it take back a whole state", 0};
            continuation = go_on(engine_, tokens_, shared_);
        }
        if (restored[0].tokens != evaluated_.tokens)
            return {CaptureMode::none, why_not_chunks + "; after restoring a whole state the text goes on differently",
                    0};
        if (!same_bits(restored[0].logits, restored[1].logits))
            return {CaptureMode::none, why_not_chunks + "; restoring a whole state twice gives different logits", 0};
        return {CaptureMode::whole, why_not_chunks + "; after restoring a whole state the text goes on the same", 0};
    }

    Engine &engine_;
    const uint32_t chunk_tokens_;
    const std::vector<llama_token> tokens_;
    const uint32_t shared_;
    std::vector<std::vector<uint8_t>> chunks_;
    std::vector<uint8_t> whole_;
    Continuation evaluated_;
};

}  // namespace

const char *capture_mode_name(CaptureMode mode) {
    switch (mode) {
        case CaptureMode::chunked: return "chunked";
        case CaptureMode::whole: return "whole";
        case CaptureMode::none: break;
    }
    return "none";
}

CaptureVerdict check_capture(Engine &engine, uint32_t chunk_tokens, bool allow_chunked) {
    if (engine.context_tokens() < 3 * chunk_tokens + continuation_tokens)
        return {CaptureMode::none, "the context is too short to check anything", 0};
    return CaptureCheck(engine, chunk_tokens).run(allow_chunked);
}
