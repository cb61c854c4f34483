// The command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "puller.h"

enum class ModeChoice { automatic, whole };

struct Options {
    bool prefill = false;
    bool decode = false;
    bool control = false;
    std::string model_path;
    std::string prompt;
    std::string prompt_file;
    uint32_t prompt_tokens = 0;  // 0 = all
    uint32_t new_tokens = 32;
    uint32_t context_tokens = 4352;
    uint32_t chunk_tokens = 64;
    uint32_t checkpoint_chunks = 8;
    int32_t threads = 2;
    ModeChoice mode = ModeChoice::automatic;
    std::string host;  // empty = the library's default
    uint32_t port = 0;
    uint32_t region_blocks = 160;
    uint64_t block_len = 0;  // 0 = what fits the model
    uint64_t peer_wait_ms = 2000;
    uint64_t load_timeout_ms = 10000;
    std::vector<PeerAddress> peers;
};

// Prints what is wrong, or the help, and exits when the arguments do not make sense or ask for it.
Options parse_options(int argc, char **argv);
