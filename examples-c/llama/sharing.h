// The two ways in which a prefix's state can be shared; which one is right for a model, capture_check.h finds out.
// A "prefix" here is a number of whole chunks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "capture_check.h"
#include "engine.h"

class Sharing {
public:
    virtual ~Sharing() = default;
    // The prefixes, in ascending order, whose snapshots would help a prompt of `chunks` chunks that has `held` of them.
    virtual std::vector<uint32_t> useful(uint32_t held, uint32_t chunks) const = 0;
    // Which of the useful ones to take when only some are there: indexes in the order of restoring.
    virtual std::vector<size_t> pick(const std::vector<bool> &available) const = 0;
    // The first of the positions that the snapshot of a prefix covers.
    virtual uint32_t first_token(uint32_t prefix) const = 0;
    // Evaluation has reached a useful prefix: brings the engine to where a restore of that prefix would, so that what
    // follows is the same for whoever evaluated and whoever pulled.
    virtual void reached(Engine &engine) const = 0;
    // A look at the engine's state for a prefix that it has just reached.
    virtual Engine::StateView view(Engine &engine, uint32_t prefix) const = 0;
    virtual bool restore(Engine &engine, const uint8_t *state, size_t len, uint32_t prefix) const = 0;
    // How many chunks the engine still has when it had `held` and a restore failed.
    virtual uint32_t held_after_failure(uint32_t held) const = 0;
    // State bytes of any snapshot, as far as they are known before it has been seen; 0 = not known.
    virtual uint64_t known_state_bytes() const = 0;
};

// `verdict.mode` must not be `none`. `checkpoint_chunks`: in whole mode, chunks from one checkpoint to the next.
std::unique_ptr<Sharing> make_sharing(const CaptureVerdict &verdict, uint32_t chunk_tokens, uint32_t checkpoint_chunks);
