#include "options.h"

#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr const char *usage =
    "usage: p2pkv-llama --model FILE (--prefill | --decode | both) [options]\n"
    "\n"
    "  --prefill              evaluate the prompt, publish its KV, and serve it until SIGINT or SIGTERM\n"
    "  --decode               pull what the peers have of the prompt, evaluate the rest, generate, publish in turn\n"
    "  --peer HOST:PORT       a peer to pull from; may be given several times\n"
    "  --prompt TEXT | --prompt-file FILE   what to work on\n"
    "  --control              take commands on stdin, answer with one JSON object a line on stdout (see README.md)\n"
    "  --prompt-tokens N      use only the first N tokens of the prompt\n"
    "  --n-predict N          tokens to generate (32)\n"
    "  --context-tokens N     longest prompt and answer (4352)\n"
    "  --chunk-tokens N       tokens of one chunk, the unit of sharing (64)\n"
    "  --mode auto|whole      auto: chunks when the start-up check finds that they work (auto)\n"
    "  --checkpoint-chunks N  whole mode: chunks between two checkpoints (8)\n"
    "  --threads N            of llama.cpp (2)\n"
    "  --host H, --port P     where peers reach this process (127.0.0.1, any free port)\n"
    "  --region-blocks N      blocks of the region (160)\n"
    "  --block-len N          bytes of a block; the same at all peers (one chunk; 1 MiB in whole mode)\n"
    "  --peer-wait-ms N       how long a peer may take to connect, and to answer (2000)\n"
    "  --load-timeout-ms N    how long one pull may take (10000)\n";

[[noreturn]] void refuse(const std::string &why) {
    std::fprintf(stderr, "p2pkv-llama: %s\n\n%s", why.c_str(), usage);
    std::exit(2);
}

uint64_t number(const char *option, const char *text, uint64_t least, uint64_t most) {
    char *end = nullptr;
    const unsigned long long value = std::strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-' || value < least || value > most)
        refuse(std::string("--") + option + " wants a number from " + std::to_string(least) + " to " +
               std::to_string(most) + ", not '" + text + "'");
    return value;
}

PeerAddress peer_address(const std::string &text) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) refuse("--peer wants HOST:PORT, not '" + text + "'");
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    return {host, static_cast<uint32_t>(number("peer", text.c_str() + colon + 1, 1, 65535))};
}

ModeChoice mode_choice(const char *text) {
    if (std::strcmp(text, "auto") == 0) return ModeChoice::automatic;
    if (std::strcmp(text, "whole") == 0) return ModeChoice::whole;
    refuse(std::string("--mode is auto or whole, not '") + text + "'");
}

enum Flag {
    prefill,
    decode,
    control,
    model,
    prompt,
    prompt_file,
    prompt_tokens,
    n_predict,
    context_tokens,
    chunk_tokens,
    mode,
    checkpoint_chunks,
    threads,
    host,
    port,
    peer,
    region_blocks,
    block_len,
    peer_wait_ms,
    load_timeout_ms,
    help,
};

const option flags[] = {
    {"prefill", no_argument, nullptr, prefill},
    {"decode", no_argument, nullptr, decode},
    {"control", no_argument, nullptr, control},
    {"model", required_argument, nullptr, model},
    {"prompt", required_argument, nullptr, prompt},
    {"prompt-file", required_argument, nullptr, prompt_file},
    {"prompt-tokens", required_argument, nullptr, prompt_tokens},
    {"n-predict", required_argument, nullptr, n_predict},
    {"context-tokens", required_argument, nullptr, context_tokens},
    {"chunk-tokens", required_argument, nullptr, chunk_tokens},
    {"mode", required_argument, nullptr, mode},
    {"checkpoint-chunks", required_argument, nullptr, checkpoint_chunks},
    {"threads", required_argument, nullptr, threads},
    {"host", required_argument, nullptr, host},
    {"port", required_argument, nullptr, port},
    {"peer", required_argument, nullptr, peer},
    {"region-blocks", required_argument, nullptr, region_blocks},
    {"block-len", required_argument, nullptr, block_len},
    {"peer-wait-ms", required_argument, nullptr, peer_wait_ms},
    {"load-timeout-ms", required_argument, nullptr, load_timeout_ms},
    {"help", no_argument, nullptr, help},
    {nullptr, 0, nullptr, 0},
};

uint32_t number32(const char *option, const char *text, uint32_t least, uint32_t most) {
    return static_cast<uint32_t>(number(option, text, least, most));
}

void apply(Options &options, int flag, const char *name, const char *value) {
    switch (flag) {
        case prefill: options.prefill = true; break;
        case decode: options.decode = true; break;
        case control: options.control = true; break;
        case model: options.model_path = value; break;
        case prompt: options.prompt = value; break;
        case prompt_file: options.prompt_file = value; break;
        case prompt_tokens: options.prompt_tokens = number32(name, value, 1, 1 << 20); break;
        case n_predict: options.new_tokens = number32(name, value, 1, 1 << 16); break;
        case context_tokens: options.context_tokens = number32(name, value, 256, 1 << 20); break;
        case chunk_tokens: options.chunk_tokens = number32(name, value, 8, 4096); break;
        case mode: options.mode = mode_choice(value); break;
        case checkpoint_chunks: options.checkpoint_chunks = number32(name, value, 1, 1 << 16); break;
        case threads: options.threads = static_cast<int32_t>(number(name, value, 1, 256)); break;
        case host: options.host = value; break;
        case port: options.port = number32(name, value, 0, 65535); break;
        case peer: options.peers.push_back(peer_address(value)); break;
        case region_blocks: options.region_blocks = number32(name, value, 1, 1 << 24); break;
        case block_len: options.block_len = number(name, value, 4096, uint64_t{1} << 34); break;
        case peer_wait_ms: options.peer_wait_ms = number(name, value, 1, 600000); break;
        case load_timeout_ms: options.load_timeout_ms = number(name, value, 1, 600000); break;
        case help: std::printf("%s", usage); std::exit(0);
        default: refuse("that is not an option");
    }
}

}  // namespace

Options parse_options(int argc, char **argv) {
    Options options;
    opterr = 0;
    int index = 0;
    for (int flag = 0; (flag = getopt_long(argc, argv, "", flags, &index)) != -1;)
        apply(options, flag, flag == '?' ? "" : flags[index].name, optarg);
    if (optind < argc) refuse(std::string("what is '") + argv[optind] + "'?");
    if (options.model_path.empty()) refuse("--model is missing");
    if (!options.prefill && !options.decode) refuse("say --prefill, --decode or both");
    if (!options.control && options.prompt.empty() == options.prompt_file.empty())
        refuse("say either --prompt or --prompt-file");
    return options;
}
