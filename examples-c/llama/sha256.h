// The examples' SHA-256 as a class, for hashing in pieces.
#pragma once

#include "../sha256.h"

#include <array>
#include <string>

using Digest = std::array<uint8_t, 32>;

class Sha256 {
public:
    Sha256() { sha256_init(&hash_); }
    void add(const void *data, size_t len) { sha256_update(&hash_, data, len); }
    Digest finish();

private:
    struct sha256 hash_;
};

std::string to_hex(const Digest &digest);

// The digest of a file's bytes. Throws std::runtime_error when it cannot be read.
Digest sha256_of_file(const std::string &path);
