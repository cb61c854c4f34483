// The library's handles as C++ objects: freed in the right order, and its errors as exceptions with its own words.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "p2pkv.h"

struct P2pError : std::runtime_error {
    P2pError(const char *call, p2p_status code);
    p2p_status status;
};

// Throws P2pError for an error; statuses that are none (TIMED_OUT, BUSY, TRUNCATED) are handed back.
p2p_status checked(const char *call, p2p_status status);

p2p_str borrowed(const std::string &text);

// The memory that peers read from and write to. It must outlive the tier: declare it before.
class Region {
public:
    Region(uint64_t num_blocks, uint64_t block_len);
    ~Region();
    Region(const Region &) = delete;
    Region &operator=(const Region &) = delete;

    void *base() const { return base_; }
    uint64_t num_blocks() const { return num_blocks_; }
    uint64_t block_len() const { return block_len_; }
    uint8_t *block(uint32_t index) const { return static_cast<uint8_t *>(base_) + uint64_t{index} * block_len_; }

private:
    uint64_t num_blocks_;
    uint64_t block_len_;
    void *base_ = nullptr;
};

struct TierSettings {
    std::string host;
    uint32_t port;
    std::string model_config_json;
    uint64_t peer_wait_ms;
    uint64_t load_timeout_ms;
};

class Tier {
public:
    Tier(const TierSettings &settings, const Region &region);
    ~Tier() { p2p_tier_free(tier_); }
    Tier(const Tier &) = delete;
    Tier &operator=(const Tier &) = delete;

    const p2p_tier *handle() const { return tier_; }
    // host:port, by which peers reach this tier.
    std::string id() const;

private:
    p2p_tier *tier_ = nullptr;
};

// One prompt's dealings with one peer.
class Request {
public:
    Request(const Tier &tier, const std::string &kv_request_id, const std::string &peer_host, uint32_t peer_port);
    ~Request() { p2p_request_finish(request_); }
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;

    p2p_request *handle() const { return request_; }
    // Why the request can get nothing from its peer; nothing while it can.
    std::optional<std::string> failure() const;

private:
    p2p_request *request_ = nullptr;
};
