# `make help` lists the targets.
CARGO      ?= cargo
PREFIX     ?= /usr/local
TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASE    := $(TARGET_DIR)/release
VERSION    := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SONAME     := libp2pkv.so.0

SEEDS      ?= 1000000
FIRST      ?= 0

export CARGO

build: requirements ## build the release library (default)
	$(CARGO) build --release --locked
	ln -sf libp2pkv.so $(RELEASE)/$(SONAME)

demo: build ## two processes share the KV blocks of a real text
	$(MAKE) -C examples-c --no-print-directory P2PKV_LIB=$(abspath $(RELEASE))
	scripts/demo.sh

test: ## everything that CI runs
	scripts/requirements.sh test
	scripts/test.sh

soak: ## faults on purpose, the long form (about 20 min); writes the table of docs/reliability.md
	scripts/requirements.sh test
	$(MAKE) soak-core
	scripts/soak.sh

soak-core: ## a million runs of the simulator, or SEEDS, from FIRST on
	P2PKV_SIM_SEEDS=$(SEEDS) P2PKV_SIM_FIRST=$(FIRST) \
	  $(CARGO) test --release --locked --test sim every_seed -- --nocapture

fuzz: ## each fuzz target for FUZZ_SECONDS (default 60); needs a nightly toolchain and cargo-fuzz
	scripts/fuzz.sh

sanitize: ## the tests under AddressSanitizer, ThreadSanitizer, Miri and valgrind; needs a nightly toolchain
	scripts/sanitize.sh

interleavings: ## the tier's threads in thousands of chosen orders, under the model checker shuttle
	scripts/interleavings.sh

interop: build ## our tier against real vLLM tiers over NIXL (takes wheels from PyPI into a cache)
	scripts/requirements.sh test
	P2PKV_LIBRARY=$(abspath $(RELEASE))/$(SONAME) python3 tests/interop/run.py $(VLLM)

bench-vllm: build ## the same pulls by two vLLM tiers and by two of ours
	P2PKV_LIBRARY=$(abspath $(RELEASE))/$(SONAME) python3 tests/interop/bench.py $(VLLM)

examples: build ## build the C examples into build/examples
	$(MAKE) -C examples-c P2PKV_LIB=$(abspath $(RELEASE))

header: ## write include/p2pkv.h anew from src/capi
	P2PKV_WRITE_HEADER=1 $(CARGO) check --locked

bench: ## every way beside bare programs and rivals; writes docs/performance.md
	$(CARGO) bench --locked --bench compare

bench-parts: ## what the parts of the library cost for each key and block, one at a time (about a minute)
	$(CARGO) bench --locked --bench parts

$(RELEASE)/libp2pkv.so:
	$(MAKE) build

install: $(RELEASE)/libp2pkv.so ## library, header and pkg-config file below PREFIX (and DESTDIR)
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $(RELEASE)/libp2pkv.so $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libp2pkv.so
	install -m 644 $(RELEASE)/libp2pkv.a $(DESTDIR)$(PREFIX)/lib/
	install -m 644 include/p2pkv.h $(DESTDIR)$(PREFIX)/include/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' scripts/p2pkv.pc.in \
	  > $(DESTDIR)$(PREFIX)/lib/pkgconfig/p2pkv.pc

requirements: ## check for what the build needs; as root on Debian/Ubuntu, install it
	scripts/requirements.sh build

include examples-c/llama/llama.mk

clean: ## remove everything that was built
	$(CARGO) clean
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 22

.DEFAULT_GOAL := build
.PHONY: build demo test soak soak-core fuzz sanitize interleavings interop bench-vllm examples header bench \
  bench-parts install requirements clean help
