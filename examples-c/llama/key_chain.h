// Names for prefixes: each chunk's key hashes its parent's key and its own tokens, so equal keys mean equal prefixes,
// and two prompts that begin alike share the keys of what they have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"
#include "sha256.h"

using ChainKey = Digest;

// A chain key names a state that may span several blocks; a block's key is the chain key and the part's number,
// big-endian, as wide as vLLM's KV-cache-group index.
constexpr size_t block_key_len = sizeof(ChainKey) + sizeof(uint32_t);

// keys[i] names the prefix of (i + 1) * chunk_tokens tokens. Tokens past the last whole chunk have no key.
// `root` is whatever must agree before two states can be exchanged at all: model, parameters, way of capturing.
std::vector<ChainKey> chain_keys(const std::string &root, const std::vector<llama_token> &tokens,
                                 uint32_t chunk_tokens);

// Appends the key of one part to packed keys, the form in which p2p_keys takes them.
void append_block_key(std::vector<uint8_t> &packed, const ChainKey &key, uint32_t part);
