// llama.cpp behind the few operations that sharing KV needs. One sequence is worked on at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llama.h"

struct EngineSettings {
    std::string model_path;
    uint32_t context_tokens;
    uint32_t chunk_tokens;
    int32_t threads;
};

class Engine {
public:
    // Throws std::runtime_error when the model or the context cannot be made.
    explicit Engine(const EngineSettings &settings);

    std::vector<llama_token> tokenize(const std::string &text) const;
    std::string text_of(llama_token token) const;
    bool ends_generation(llama_token token) const;
    uint32_t sliding_window() const;
    uint32_t context_tokens() const { return settings_.context_tokens; }
    // What two engines must have in common to read each other's states, as members of a JSON object.
    std::string parameters_json() const;

    // Forgets the sequence.
    void clear();
    // Evaluates tokens [first, end) of the sequence. No logits come of it. At most one chunk.
    void evaluate(const std::vector<llama_token> &tokens, uint32_t first, uint32_t end);
    // Evaluates the token at `position` by itself, in place of whatever is there, and gives the greedy next token.
    llama_token evaluate_last(llama_token token, uint32_t position);
    // The logits of the last evaluate_last.
    std::vector<float> logits() const;

    // A view of a part of the sequence's state, to be copied out. At most one exists at a time.
    class StateView {
    public:
        ~StateView();
        StateView(const StateView &) = delete;
        StateView &operator=(const StateView &) = delete;
        size_t size() const;
        // False when the engine did not give exactly `len` bytes.
        bool copy_to(uint8_t *destination, size_t len) const;

    private:
        friend class Engine;
        StateView(llama_context *context, llama_seq_id sequence) : context_(context), sequence_(sequence) {}
        llama_context *context_;
        llama_seq_id sequence_;
    };

    StateView view_chunk(uint32_t first, uint32_t end);
    StateView view_whole();

    // Puts a chunk behind those already there. False, and the sequence is as before, when the bytes do not hold
    // exactly these positions.
    bool restore_chunk(const uint8_t *state, size_t len, uint32_t first, uint32_t end);
    // Replaces the sequence. False, and the sequence is empty, when the bytes do not end at `end`.
    bool restore_whole(const uint8_t *state, size_t len, uint32_t end);
    // Takes the sequence's state out and puts it back. What it says stays the same, but it lies where a restore lays
    // it: attention then adds in that order, and gives the bits that it gives after a restore elsewhere.
    void rebase();

private:
    void decode(const llama_token *tokens, uint32_t count, uint32_t position, bool logits);
    llama_memory_t memory() const { return llama_get_memory(context_.get()); }

    struct FreeModel {
        void operator()(llama_model *model) const { llama_model_free(model); }
    };
    struct FreeContext {
        void operator()(llama_context *context) const { llama_free(context); }
    };
    class Batch {
    public:
        explicit Batch(uint32_t capacity) : batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}
        ~Batch() { llama_batch_free(batch_); }
        Batch(const Batch &) = delete;
        Batch &operator=(const Batch &) = delete;
        llama_batch &get() { return batch_; }

    private:
        llama_batch batch_;
    };

    EngineSettings settings_;
    std::unique_ptr<llama_model, FreeModel> model_;
    std::unique_ptr<llama_context, FreeContext> context_;
    Batch batch_;
    const llama_vocab *vocab_ = nullptr;
};
