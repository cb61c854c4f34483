# Rules for the llama.cpp example; the top Makefile includes this file.
#   make llama        fetches and builds llama.cpp and the model (once, outside the source tree), builds the example,
#                     runs every demonstration and measurement, and writes docs/llama-results.md and its chart
#   make llama-check  the small form, for `make test`: skipped with a message when the model is not installed

LLAMA_DIR := examples-c/llama
LLAMA_SOURCES := $(wildcard $(LLAMA_DIR)/*.cpp)
LLAMA_HEADERS := $(wildcard $(LLAMA_DIR)/*.h) include/p2pkv.h
LLAMA_OUT ?= target/examples-c/llama
LLAMA_P2PKV_LIB ?= target/release
LLAMA_PLACES := $(LLAMA_OUT)/places.mk
LLAMA_CXXFLAGS := -std=c++17 -O2 -g -Wall -Wextra -pedantic -Werror -pthread

.PHONY: llama llama-check llama-setup

llama-setup:
	@mkdir -p $(LLAMA_OUT)
	@sh $(LLAMA_DIR)/setup.sh > $(LLAMA_PLACES)

llama: llama-setup
	cargo build --release
	$(MAKE) $(LLAMA_OUT)/p2pkv-llama
	. ./$(LLAMA_PLACES) && python3 $(LLAMA_DIR)/demo.py --program $(LLAMA_OUT)/p2pkv-llama --model "$$MODEL" --source "$$LLAMA_SOURCE" --docs docs

llama-check:
	@mkdir -p $(LLAMA_OUT)
	@if sh $(LLAMA_DIR)/setup.sh --check > $(LLAMA_PLACES); then \
	    cargo build --release && \
	    $(MAKE) $(LLAMA_OUT)/p2pkv-llama && \
	    . ./$(LLAMA_PLACES) && python3 $(LLAMA_DIR)/demo.py --small --program $(LLAMA_OUT)/p2pkv-llama --model "$$MODEL" --source "$$LLAMA_SOURCE"; \
	else \
	    echo "SKIPPED: llama.cpp example: engine or model not installed here ('make llama' installs both)"; \
	fi

# $(LLAMA_PLACES) says where llama.cpp is, and is written by the rules above before this one is asked for.
$(LLAMA_OUT)/p2pkv-llama: $(LLAMA_SOURCES) $(LLAMA_HEADERS)
	. ./$(LLAMA_PLACES) && $(CXX) $(LLAMA_CXXFLAGS) -isystem "$$LLAMA_INCLUDE" -isystem "$$GGML_INCLUDE" -Iinclude \
	    $(LLAMA_SOURCES) -o $@ -L$(LLAMA_P2PKV_LIB) -lp2pkv -L"$$LLAMA_LIB" -lllama -lggml -lggml-base \
	    -Wl,-rpath,"$$LLAMA_LIB" -Wl,-rpath,$(abspath $(LLAMA_P2PKV_LIB))
