// What the program tells: sentences for people on stderr, or, for a driver, one JSON object a line on stdout.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "llama.h"

class JsonLine {
public:
    explicit JsonLine(const std::string &event) { add("event", event); }
    JsonLine &add(const char *name, const std::string &text) { return raw(name, quoted(text)); }
    JsonLine &add(const char *name, const char *text) { return add(name, std::string(text)); }
    JsonLine &add(const char *name, uint64_t number) { return raw(name, std::to_string(number)); }
    JsonLine &add(const char *name, uint32_t number) { return raw(name, std::to_string(number)); }
    JsonLine &add(const char *name, double number) { return raw(name, std::to_string(number)); }
    JsonLine &add(const char *name, const std::vector<llama_token> &tokens) {
        std::string list;
        for (const llama_token token : tokens) list += (list.empty() ? "" : ",") + std::to_string(token);
        return raw(name, "[" + list + "]");
    }
    std::string text() const { return "{" + members_ + "}"; }

private:
    JsonLine &raw(const char *name, const std::string &value) {
        members_ += (members_.empty() ? "\"" : ",\"") + std::string(name) + "\":" + value;
        return *this;
    }
    static std::string quoted(const std::string &text) {
        std::string out = "\"";
        for (const char c : text) {
            char escaped[8];
            if (static_cast<unsigned char>(c) < 0x20)
                std::snprintf(escaped, sizeof escaped, "\\u%04x", c), out += escaped;
            else if (c == '"' || c == '\\')
                out += '\\', out += c;
            else
                out += c;
        }
        return out + "\"";
    }
    std::string members_;
};

class Journal {
public:
    explicit Journal(bool for_driver) : for_driver_(for_driver) {}
    bool for_driver() const { return for_driver_; }

    void note(const std::string &sentence) const {
        if (for_driver_)
            event(JsonLine("note").add("text", sentence));
        else
            std::fprintf(stderr, "p2pkv-llama: %s\n", sentence.c_str());
    }
    // Only a driver sees events.
    void event(const JsonLine &line) const {
        if (!for_driver_) return;
        std::printf("%s\n", line.text().c_str());
        std::fflush(stdout);
    }

private:
    bool for_driver_;
};
