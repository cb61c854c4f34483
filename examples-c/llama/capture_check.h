// Decides at start-up, by trying it on this model, how prefixes can be shared.
#pragma once

#include <cstdint>
#include <string>

#include "engine.h"

enum class CaptureMode {
    // Each chunk's positions by themselves; a prefix is restored from the chunks in it.
    chunked,
    // The whole state at some prefixes (checkpoints), for models whose state cannot be cut.
    whole,
    // Restoring does not give what evaluating gives: nothing may be shared.
    none,
};

const char *capture_mode_name(CaptureMode mode);

struct CaptureVerdict {
    CaptureMode mode;
    std::string reason;
    // Bytes that the engine gives for one chunk; 0 unless chunked.
    uint64_t chunk_state_bytes;
};

// Evaluates a text longer than the model's sliding window, captures, restores, and compares what comes next. Chunks
// must give the same logits as evaluating, bit for bit. A whole state must give the same continuation, and the same
// bits each time; that processes agree to the bit is then up to Engine::rebase. `allow_chunked` = false tries whole
// only.
CaptureVerdict check_capture(Engine &engine, uint32_t chunk_tokens, bool allow_chunked);
