#include "engine.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace {

constexpr llama_seq_id working_sequence = 0;
// Chunks are cut out of, and brought into, the working sequence through this one: llama.cpp writes and reads the
// state of a sequence as a whole, but copies any range of positions from one sequence to another without moving data.
constexpr llama_seq_id transfer_sequence = 1;

void print_engine_errors(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

llama_context_params context_params(const EngineSettings &settings) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = settings.context_tokens;
    params.n_batch = params.n_ubatch = settings.chunk_tokens;
    params.n_threads = params.n_threads_batch = settings.threads;
    params.n_seq_max = 2;
    // Both sequences in one pool of cells: else copying a range between them is not possible.
    params.kv_unified = true;
    // All layers keep all positions. A cache as small as the sliding window would put the same positions into other
    // cells after a restore, and so add the same numbers in another order.
    params.swa_full = true;
    return params;
}

}  // namespace

Engine::Engine(const EngineSettings &settings) : settings_(settings), batch_(settings.chunk_tokens) {
    llama_log_set(print_engine_errors, nullptr);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    model_.reset(llama_model_load_from_file(settings.model_path.c_str(), model_params));
    if (!model_) throw std::runtime_error("llama.cpp cannot load the model " + settings.model_path);
    context_.reset(llama_init_from_model(model_.get(), context_params(settings)));
    if (!context_)
        throw std::runtime_error("llama.cpp cannot make a context of " + std::to_string(settings.context_tokens) +
                                 " tokens");
    vocab_ = llama_model_get_vocab(model_.get());
}

std::vector<llama_token> Engine::tokenize(const std::string &text) const {
    std::vector<llama_token> tokens(text.size() + 8);
    const int32_t count = llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                         static_cast<int32_t>(tokens.size()), true, false);
    if (count < 0) throw std::runtime_error("llama.cpp cannot tokenize the prompt");
    tokens.resize(static_cast<size_t>(count));
    return tokens;
}

std::string Engine::text_of(llama_token token) const {
    char piece[256];
    const int32_t len = llama_token_to_piece(vocab_, token, piece, sizeof piece, 0, false);
    return len > 0 ? std::string(piece, static_cast<size_t>(len)) : std::string();
}

bool Engine::ends_generation(llama_token token) const { return llama_vocab_is_eog(vocab_, token); }

uint32_t Engine::sliding_window() const { return static_cast<uint32_t>(std::max(0, llama_model_n_swa(model_.get()))); }

std::string Engine::parameters_json() const {
    const llama_context_params params = context_params(settings_);
    return "\"engine\":\"llama.cpp\",\"state_version\":" + std::to_string(LLAMA_STATE_SEQ_VERSION) +
           ",\"type_k\":" + std::to_string(params.type_k) + ",\"type_v\":" + std::to_string(params.type_v) +
           ",\"flash_attention\":" + std::to_string(params.flash_attn_type) +
           ",\"little_endian\":" + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "true" : "false") +
           ",\"chunk_tokens\":" + std::to_string(settings_.chunk_tokens);
}

void Engine::clear() { llama_memory_clear(memory(), false); }

void Engine::decode(const llama_token *tokens, uint32_t count, uint32_t position, bool logits) {
    llama_batch &batch = batch_.get();
    batch.n_tokens = static_cast<int32_t>(count);
    for (uint32_t i = 0; i < count; ++i) {
        batch.token[i] = tokens[i];
        batch.pos[i] = static_cast<llama_pos>(position + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = working_sequence;
        batch.logits[i] = logits;
    }
    if (const int32_t failure = llama_decode(context_.get(), batch))
        throw std::runtime_error("llama_decode of " + std::to_string(count) + " tokens at " + std::to_string(position) +
                                 " failed with " + std::to_string(failure));
}

void Engine::evaluate(const std::vector<llama_token> &tokens, uint32_t first, uint32_t end) {
    decode(tokens.data() + first, end - first, first, false);
}

llama_token Engine::evaluate_last(llama_token token, uint32_t position) {
    llama_memory_seq_rm(memory(), working_sequence, static_cast<llama_pos>(position), -1);
    decode(&token, 1, position, true);
    const float *values = llama_get_logits_ith(context_.get(), -1);
    const float *best = std::max_element(values, values + llama_vocab_n_tokens(vocab_));
    return static_cast<llama_token>(best - values);
}

std::vector<float> Engine::logits() const {
    const float *values = llama_get_logits_ith(context_.get(), -1);
    return {values, values + llama_vocab_n_tokens(vocab_)};
}

Engine::StateView Engine::view_chunk(uint32_t first, uint32_t end) {
    llama_memory_seq_cp(memory(), working_sequence, transfer_sequence, static_cast<llama_pos>(first),
                        static_cast<llama_pos>(end));
    return {context_.get(), transfer_sequence};
}

Engine::StateView Engine::view_whole() { return {context_.get(), working_sequence}; }

Engine::StateView::~StateView() {
    if (sequence_ == transfer_sequence) llama_memory_seq_rm(llama_get_memory(context_), transfer_sequence, -1, -1);
}

size_t Engine::StateView::size() const { return llama_state_seq_get_size(context_, sequence_); }

bool Engine::StateView::copy_to(uint8_t *destination, size_t len) const {
    return llama_state_seq_get_data(context_, destination, len, sequence_) == len;
}

bool Engine::restore_chunk(const uint8_t *state, size_t len, uint32_t first, uint32_t end) {
    const bool placed = llama_state_seq_set_data(context_.get(), state, len, transfer_sequence) == len &&
                        llama_memory_seq_pos_min(memory(), transfer_sequence) == static_cast<llama_pos>(first) &&
                        llama_memory_seq_pos_max(memory(), transfer_sequence) == static_cast<llama_pos>(end) - 1;
    if (placed) llama_memory_seq_cp(memory(), transfer_sequence, working_sequence, -1, -1);
    llama_memory_seq_rm(memory(), transfer_sequence, -1, -1);
    return placed;
}

bool Engine::restore_whole(const uint8_t *state, size_t len, uint32_t end) {
    clear();
    const bool placed = llama_state_seq_set_data(context_.get(), state, len, working_sequence) == len &&
                        llama_memory_seq_pos_max(memory(), working_sequence) == static_cast<llama_pos>(end) - 1;
    if (!placed) clear();
    return placed;
}

void Engine::rebase() {
    const StateView view = view_whole();
    std::vector<uint8_t> state(view.size());
    const auto end = static_cast<uint32_t>(llama_memory_seq_pos_max(memory(), working_sequence) + 1);
    if (!view.copy_to(state.data(), state.size()) || !restore_whole(state.data(), state.size(), end))
        throw std::runtime_error("llama.cpp does not take back the state that it gave");
}
