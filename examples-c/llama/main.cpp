// p2pkv-llama: llama.cpp processes that share the KV cache of a model through libp2pkv.
#include <csignal>
#include <cstdio>
#include <fstream>
#include <future>
#include <iostream>
#include <optional>
#include <sstream>

#include "block_cache.h"
#include "capture_check.h"
#include "engine.h"
#include "journal.h"
#include "options.h"
#include "puller.h"
#include "runner.h"
#include "sharing.h"
#include "tier.h"

namespace {

// Everything that sharing needs, in the order of making; it is taken down in the reverse order, the region last.
class SharingSetup {
public:
    SharingSetup(const Options &options, const CaptureVerdict &verdict, const std::string &model_config_json,
                 const Journal &journal)
        : sharing_(make_sharing(verdict, options.chunk_tokens, options.checkpoint_chunks)),
          region_(options.region_blocks, block_len(options, verdict)),
          tier_({options.host, options.port, model_config_json, options.peer_wait_ms, options.load_timeout_ms},
                region_),
          cache_(region_, tier_) {
        if (!options.peers.empty()) {
            const PullSettings settings{options.peers, options.peer_wait_ms, options.load_timeout_ms};
            puller_.emplace(tier_, cache_, *sharing_, settings, journal);
        }
        parts_ = {sharing_.get(), &cache_, puller_ ? &*puller_ : nullptr};
    }

    const Region &region() const { return region_; }
    const Tier &tier() const { return tier_; }
    BlockCache &cache() { return cache_; }
    const SharingParts *parts() const { return &parts_; }

private:
    static uint64_t block_len(const Options &options, const CaptureVerdict &verdict) {
        constexpr uint64_t page = 4096, checkpoint_block = 1 << 20;
        if (options.block_len != 0) return options.block_len;
        if (verdict.chunk_state_bytes == 0) return checkpoint_block;
        return (verdict.chunk_state_bytes + sizeof(SnapshotHeader) + page - 1) / page * page;
    }

    std::unique_ptr<Sharing> sharing_;
    Region region_;
    Tier tier_;
    BlockCache cache_;
    std::optional<Puller> puller_;
    SharingParts parts_{};
};

std::string file_text(const std::string &path) {
    const std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::vector<llama_token> prompt_tokens(const Engine &engine, const std::string &text, uint32_t limit) {
    std::vector<llama_token> tokens = engine.tokenize(text);
    if (limit > tokens.size())
        throw std::runtime_error("the prompt has only " + std::to_string(tokens.size()) + " tokens");
    if (limit > 0) tokens.resize(limit);
    return tokens;
}

JsonLine report_line(const RunReport &report) {
    return JsonLine("done")
        .add("prompt_tokens", report.prompt_tokens)
        .add("chunks", report.chunks)
        .add("held_chunks", report.held_chunks)
        .add("pulled_chunks", report.pulled_chunks)
        .add("evaluated_tokens", report.evaluated_tokens)
        .add("published", report.published)
        .add("peer", report.pull.peer)
        .add("pull_bytes", report.pull.bytes)
        .add("lookup_ms", report.pull.lookup_ms)
        .add("load_ms", report.pull.load_ms)
        .add("load_failures", report.pull.failures)
        .add("failed_ms", report.pull.failed_ms)
        .add("restore_ms", report.restore_ms)
        .add("evaluate_ms", report.evaluate_ms)
        .add("first_token_ms", report.first_token_ms)
        .add("tokens", report.tokens)
        .add("text", report.text);
}

std::string summary(const RunReport &report) {
    char line[256];
    std::snprintf(
        line, sizeof line,
        "%u chunks held, %u pulled (%.1f MB in %.1f ms), %u tokens evaluated in %.0f ms, first token after %.0f ms",
        report.held_chunks, report.pulled_chunks, static_cast<double>(report.pull.bytes) / 1e6, report.pull.load_ms,
        report.evaluated_tokens, report.evaluate_ms, report.first_token_ms);
    return line;
}

struct RunCommand {
    std::string path;
    uint32_t prompt_tokens = 0;
    uint32_t new_tokens = 0;
};

RunCommand parse_run(std::istringstream &words, uint32_t new_tokens) {
    RunCommand run;
    run.new_tokens = new_tokens;
    words >> run.path;
    for (std::string setting; words >> setting;) {
        if (setting.rfind("tokens=", 0) == 0)
            run.prompt_tokens = static_cast<uint32_t>(std::stoul(setting.substr(7)));
        else if (setting.rfind("predict=", 0) == 0)
            run.new_tokens = static_cast<uint32_t>(std::stoul(setting.substr(8)));
        else
            throw std::runtime_error("run does not know '" + setting + "'");
    }
    return run;
}

// Commands, one a line: "run FILE [tokens=N] [predict=N]", "count FILE", "forget", "quit". Each but the last is
// answered by one "done" or "error"; others of the journal's lines may come before.
JsonLine obey(const std::string &command, std::istringstream &words, const Options &options, const Engine &engine,
              Runner &runner, SharingSetup *setup) {
    if (command == "run") {
        const RunCommand run = parse_run(words, options.decode ? options.new_tokens : 0);
        return report_line(runner.run(prompt_tokens(engine, file_text(run.path), run.prompt_tokens), run.new_tokens));
    }
    if (command == "count") {
        std::string path;
        words >> path;
        return JsonLine("done").add("prompt_tokens", uint64_t{engine.tokenize(file_text(path)).size()});
    }
    if (command == "forget") return JsonLine("done").add("kept", uint64_t{setup ? setup->cache().forget_all() : 0});
    throw std::runtime_error("the commands are run, count, forget and quit; not '" + command + "'");
}

void obey_commands(const Options &options, const Engine &engine, Runner &runner, SharingSetup *setup,
                   const Journal &journal) {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command;
        words >> command;
        if (command == "quit") return;
        try {
            journal.event(obey(command, words, options, engine, runner, setup));
        } catch (const std::exception &error) {
            journal.event(JsonLine("error").add("text", error.what()));
        }
    }
}

void run_once(const Options &options, const Engine &engine, Runner &runner, const Journal &journal) {
    const std::string text = options.prompt_file.empty() ? options.prompt : file_text(options.prompt_file);
    const RunReport report =
        runner.run(prompt_tokens(engine, text, options.prompt_tokens), options.decode ? options.new_tokens : 0);
    journal.note(summary(report));
    if (options.decode) std::printf("%s\n", report.text.c_str());
    std::fflush(stdout);
}

sigset_t stop_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    return signals;
}

void serve_until_told_to_stop(const Journal &journal) {
    journal.note("serving; stop with SIGINT or SIGTERM");
    const sigset_t signals = stop_signals();
    int signal = 0;
    sigwait(&signals, &signal);
}

void run(const Options &options) {
    const Journal journal(options.control);
    std::future<Digest> model_digest = std::async(std::launch::async, sha256_of_file, options.model_path);
    Engine engine({options.model_path, options.context_tokens, options.chunk_tokens, options.threads});
    const CaptureVerdict verdict = check_capture(engine, options.chunk_tokens, options.mode == ModeChoice::automatic);
    journal.note(std::string("sharing mode is ") + capture_mode_name(verdict.mode) + ": " + verdict.reason);

    const std::string model_config_json = "{" + engine.parameters_json() + ",\"capture\":\"" +
                                          capture_mode_name(verdict.mode) + "\",\"model_sha256\":\"" +
                                          to_hex(model_digest.get()) + "\"}";
    std::optional<SharingSetup> setup;
    if (verdict.mode != CaptureMode::none) setup.emplace(options, verdict, model_config_json, journal);
    Runner runner(engine, options.chunk_tokens, model_config_json, setup ? setup->parts() : nullptr, journal);

    JsonLine ready("ready");
    ready.add("mode", capture_mode_name(verdict.mode))
        .add("reason", verdict.reason)
        .add("chunk_state_bytes", verdict.chunk_state_bytes);
    if (setup) {
        ready.add("id", setup->tier().id())
            .add("block_len", setup->region().block_len())
            .add("num_blocks", setup->region().num_blocks());
        journal.note("peers reach this process at " + setup->tier().id());
    }
    journal.event(ready);
    if (options.control) return obey_commands(options, engine, runner, setup ? &*setup : nullptr, journal);
    run_once(options, engine, runner, journal);
    if (options.prefill && setup) serve_until_told_to_stop(journal);
}

}  // namespace

int main(int argc, char **argv) {
    const Options options = parse_options(argc, argv);
    if (!options.control) {
        // Blocked before the first thread is made, so that all of them leave these signals to sigwait.
        const sigset_t signals = stop_signals();
        pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    }
    try {
        run(options);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "p2pkv-llama: %s\n", error.what());
        return 1;
    }
    return 0;
}
