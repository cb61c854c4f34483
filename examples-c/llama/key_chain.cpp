#include "key_chain.h"

std::vector<ChainKey> chain_keys(const std::string &root, const std::vector<llama_token> &tokens,
                                 uint32_t chunk_tokens) {
    Sha256 root_hash;
    root_hash.add(root.data(), root.size());
    ChainKey parent = root_hash.finish();

    std::vector<ChainKey> keys;
    for (size_t first = 0; first + chunk_tokens <= tokens.size(); first += chunk_tokens) {
        Sha256 hash;
        hash.add(parent.data(), parent.size());
        for (size_t i = first; i < first + chunk_tokens; ++i) {
            const auto token = static_cast<uint32_t>(tokens[i]);
            const uint8_t bytes[4] = {static_cast<uint8_t>(token >> 24), static_cast<uint8_t>(token >> 16),
                                      static_cast<uint8_t>(token >> 8), static_cast<uint8_t>(token)};
            hash.add(bytes, sizeof bytes);
        }
        parent = hash.finish();
        keys.push_back(parent);
    }
    return keys;
}

void append_block_key(std::vector<uint8_t> &packed, const ChainKey &key, uint32_t part) {
    packed.insert(packed.end(), key.begin(), key.end());
    for (int shift = 24; shift >= 0; shift -= 8) packed.push_back(static_cast<uint8_t>(part >> shift));
}
