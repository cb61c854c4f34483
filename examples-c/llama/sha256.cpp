#include "sha256.h"

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

Digest Sha256::finish() {
    Digest digest;
    sha256_final(&hash_, digest.data());
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
