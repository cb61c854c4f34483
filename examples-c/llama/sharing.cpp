#include "sharing.h"

namespace {

// Every chunk by itself; a prefix needs all of its chunks, so what counts is the run of them from the start.
class ChunkSharing final : public Sharing {
public:
    ChunkSharing(uint32_t chunk_tokens, uint64_t state_bytes)
        : chunk_tokens_(chunk_tokens), state_bytes_(state_bytes) {}

    std::vector<uint32_t> useful(uint32_t held, uint32_t chunks) const override {
        std::vector<uint32_t> prefixes;
        for (uint32_t prefix = held + 1; prefix <= chunks; ++prefix) prefixes.push_back(prefix);
        return prefixes;
    }
    std::vector<size_t> pick(const std::vector<bool> &available) const override {
        std::vector<size_t> picked;
        while (picked.size() < available.size() && available[picked.size()]) picked.push_back(picked.size());
        return picked;
    }
    uint32_t first_token(uint32_t prefix) const override { return (prefix - 1) * chunk_tokens_; }
    void reached(Engine &) const override {}  // chunks go back to the cells that they came from
    Engine::StateView view(Engine &engine, uint32_t prefix) const override {
        return engine.view_chunk(first_token(prefix), prefix * chunk_tokens_);
    }
    bool restore(Engine &engine, const uint8_t *state, size_t len, uint32_t prefix) const override {
        return engine.restore_chunk(state, len, first_token(prefix), prefix * chunk_tokens_);
    }
    uint32_t held_after_failure(uint32_t held) const override { return held; }
    uint64_t known_state_bytes() const override { return state_bytes_; }

private:
    const uint32_t chunk_tokens_;
    const uint64_t state_bytes_;
};

// The whole state at some prefixes, the same ones for every prompt; the longest is all that is needed.
class CheckpointSharing final : public Sharing {
public:
    CheckpointSharing(uint32_t chunk_tokens, uint32_t stride) : chunk_tokens_(chunk_tokens), stride_(stride) {}

    std::vector<uint32_t> useful(uint32_t held, uint32_t chunks) const override {
        std::vector<uint32_t> prefixes;
        for (uint32_t prefix = (held / stride_ + 1) * stride_; prefix <= chunks; prefix += stride_)
            prefixes.push_back(prefix);
        return prefixes;
    }
    std::vector<size_t> pick(const std::vector<bool> &available) const override {
        for (size_t i = available.size(); i-- > 0;)
            if (available[i]) return {i};
        return {};
    }
    uint32_t first_token(uint32_t) const override { return 0; }
    void reached(Engine &engine) const override { engine.rebase(); }
    Engine::StateView view(Engine &engine, uint32_t) const override { return engine.view_whole(); }
    bool restore(Engine &engine, const uint8_t *state, size_t len, uint32_t prefix) const override {
        return engine.restore_whole(state, len, prefix * chunk_tokens_);
    }
    uint32_t held_after_failure(uint32_t) const override { return 0; }
    uint64_t known_state_bytes() const override { return 0; }

private:
    const uint32_t chunk_tokens_;
    const uint32_t stride_;
};

}  // namespace

std::unique_ptr<Sharing> make_sharing(const CaptureVerdict &verdict, uint32_t chunk_tokens,
                                      uint32_t checkpoint_chunks) {
    if (verdict.mode == CaptureMode::chunked)
        return std::make_unique<ChunkSharing>(chunk_tokens, verdict.chunk_state_bytes);
    return std::make_unique<CheckpointSharing>(chunk_tokens, checkpoint_chunks);
}
