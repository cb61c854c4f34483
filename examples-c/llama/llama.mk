# Rules for the llama.cpp example; the top Makefile includes this file.

# `make llama ONLY="first_token killed"` measures these scenarios anew.
LLAMA_DIR := examples-c/llama
LLAMA_OUT := build/llama
LLAMA_PLACES := $(LLAMA_OUT)/places
LLAMA_SOURCES := $(wildcard $(LLAMA_DIR)/*.cpp)
LLAMA_CXXFLAGS := -std=c++17 -O2 -g -Wall -Wextra -pedantic -Werror -pthread
LLAMA_DEMO = . ./$(LLAMA_PLACES) && \
    python3 $(LLAMA_DIR)/demo.py --program $(LLAMA_OUT)/p2pkv-llama --model "$$MODEL" --source "$$LLAMA_SOURCE"

llama: build ## real engine, real model: fetches llama.cpp and Gemma 3 270M, shows and measures
	@mkdir -p $(LLAMA_OUT)
	@sh $(LLAMA_DIR)/setup.sh > $(LLAMA_PLACES)
	$(MAKE) --no-print-directory $(LLAMA_OUT)/p2pkv-llama
	$(LLAMA_DEMO) --docs docs $(if $(ONLY),--only $(ONLY))

# The short form for `make test`; what it needs is not installed by a test.
llama-check: build
	@mkdir -p $(LLAMA_OUT)
	@if sh $(LLAMA_DIR)/setup.sh --check > $(LLAMA_PLACES); then \
	    $(MAKE) --no-print-directory $(LLAMA_OUT)/p2pkv-llama && $(LLAMA_DEMO) --small; \
	else \
	    echo "SKIPPED: the llama.cpp example: engine or model is not installed here; 'make llama' installs both"; \
	fi

# The rules above have written where llama.cpp is.
$(LLAMA_OUT)/p2pkv-llama: $(LLAMA_SOURCES) $(wildcard $(LLAMA_DIR)/*.h) include/p2pkv.h
	. ./$(LLAMA_PLACES) && $(CXX) $(LLAMA_CXXFLAGS) -isystem "$$LLAMA_INCLUDE" -isystem "$$GGML_INCLUDE" -Iinclude \
	    $(LLAMA_SOURCES) -o $@ -L$(RELEASE) -lp2pkv -L"$$LLAMA_LIB" -lllama -lggml -lggml-base \
	    -Wl,-rpath,"$$LLAMA_LIB" -Wl,-rpath,$(abspath $(RELEASE))

.PHONY: llama llama-check
