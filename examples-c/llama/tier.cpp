#include "tier.h"

P2pError::P2pError(const char *call, p2p_status code)
    : std::runtime_error(std::string(call) + ": " + p2p_status_name(code) + ": " + p2p_last_error()), status(code) {}

p2p_status checked(const char *call, p2p_status status) {
    if (status < 0) throw P2pError(call, status);
    return status;
}

p2p_str borrowed(const std::string &text) { return {text.data(), text.size()}; }

Region::Region(uint64_t num_blocks, uint64_t block_len) : num_blocks_(num_blocks), block_len_(block_len) {
    checked("p2p_region_alloc", p2p_region_alloc(num_blocks * block_len, 0, &base_));
}

Region::~Region() { p2p_region_free(base_); }

Tier::Tier(const TierSettings &settings, const Region &region) {
    p2p_tier_config config;
    checked("p2p_tier_config_init", p2p_tier_config_init(&config, sizeof config));
    config.host = borrowed(settings.host);
    config.port = settings.port;
    config.base_addr = region.base();
    config.num_blocks = region.num_blocks();
    config.block_len = region.block_len();
    config.model_config_json = borrowed(settings.model_config_json);
    config.handshake_timeout_ms = settings.peer_wait_ms;
    config.lookup_timeout_ms = settings.peer_wait_ms;
    config.load_timeout_ms = settings.load_timeout_ms;
    checked("p2p_tier_new", p2p_tier_new(&config, &tier_));
}

std::string Tier::id() const {
    char id[264];
    size_t len = 0;
    checked("p2p_tier_local_id", p2p_tier_local_id(tier_, id, sizeof id, &len));
    return {id, len};
}

Request::Request(const Tier &tier, const std::string &kv_request_id, const std::string &peer_host, uint32_t peer_port) {
    const std::string params = "{\"remote_kv_source\":{\"kv_request_id\":\"" + kv_request_id + "\",\"remote_host\":\"" +
                               peer_host + "\",\"remote_port\":" + std::to_string(peer_port) + "}}";
    p2p_request_options options;
    checked("p2p_request_options_init", p2p_request_options_init(&options, sizeof options));
    options.kv_transfer_params_json = borrowed(params);
    checked("p2p_request_new", p2p_request_new(tier.handle(), &options, &request_));
}

std::optional<std::string> Request::failure() const {
    uint32_t outcome = P2P_OUTCOME_DONE;
    char detail[216] = "";
    size_t len = 0;
    checked("p2p_request_outcome", p2p_request_outcome(request_, &outcome, detail, sizeof detail, &len));
    if (outcome == P2P_OUTCOME_DONE) return std::nullopt;
    return std::string(p2p_outcome_name(outcome)) + ": " + detail;
}
