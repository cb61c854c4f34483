#include "sha256.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr std::array<uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr uint32_t rotate_right(uint32_t value, unsigned count) { return (value >> count) | (value << (32 - count)); }

uint32_t read_be32(const uint8_t *bytes) {
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

}  // namespace

void Sha256::compress(const uint8_t *block) {
    uint32_t schedule[64];
    for (size_t i = 0; i < 16; ++i) schedule[i] = read_be32(block + 4 * i);
    for (size_t i = 16; i < 64; ++i) {
        const uint32_t a = schedule[i - 15], b = schedule[i - 2];
        const uint32_t small0 = rotate_right(a, 7) ^ rotate_right(a, 18) ^ (a >> 3);
        const uint32_t small1 = rotate_right(b, 17) ^ rotate_right(b, 19) ^ (b >> 10);
        schedule[i] = schedule[i - 16] + small0 + schedule[i - 7] + small1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; ++i) {
        const uint32_t big1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        const uint32_t big0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        const uint32_t first = h + big1 + ((e & f) ^ (~e & g)) + round_constants[i] + schedule[i];
        const uint32_t second = big0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const std::array<uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state_[i] += mixed[i];
}

void Sha256::add(const void *data, size_t len) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    total_len_ += len;
    while (len > 0) {
        if (pending_len_ == 0 && len >= pending_.size()) {
            compress(bytes);
            bytes += pending_.size(), len -= pending_.size();
            continue;
        }
        const size_t taken = std::min(len, pending_.size() - pending_len_);
        std::memcpy(pending_.data() + pending_len_, bytes, taken);
        pending_len_ += taken, bytes += taken, len -= taken;
        if (pending_len_ == pending_.size()) compress(pending_.data()), pending_len_ = 0;
    }
}

Digest Sha256::finish() {
    const uint64_t bits = total_len_ * 8;
    const uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (pending_len_ != 56) add(&zero, 1);
    uint8_t length[8];
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    add(length, sizeof length);

    Digest digest;
    for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

std::string to_hex(const Digest &digest) {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (const uint8_t byte : digest) text += digits[byte >> 4], text += digits[byte & 15];
    return text;
}

Digest sha256_of_file(const std::string &path) {
    const std::unique_ptr<FILE, int (*)(FILE *)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) throw std::runtime_error("cannot open " + path);
    Sha256 hash;
    std::vector<uint8_t> buffer(1 << 20);
    while (const size_t len = std::fread(buffer.data(), 1, buffer.size(), file.get())) hash.add(buffer.data(), len);
    if (std::ferror(file.get())) throw std::runtime_error("cannot read " + path);
    return hash.finish();
}
