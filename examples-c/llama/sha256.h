// SHA-256 (FIPS 180-4), so that the example needs no crypto library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

using Digest = std::array<uint8_t, 32>;

class Sha256 {
public:
    void add(const void *data, size_t len);
    Digest finish();

private:
    void compress(const uint8_t *block);

    std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> pending_{};
    size_t pending_len_ = 0;
    uint64_t total_len_ = 0;
};

std::string to_hex(const Digest &digest);

// The digest of a file's bytes. Throws std::runtime_error when it cannot be read.
Digest sha256_of_file(const std::string &path);
