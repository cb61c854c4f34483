#!/bin/bash
# Runs the tests under sanitizers. Called by `make sanitize`.
#
#   scripts/sanitize.sh              all of them
#   scripts/sanitize.sh address miri  these
#
#   address   every Rust test, and the C programs of tests/c, with the library built under AddressSanitizer; leaks
#             are errors
#   thread    the tests with many threads under ThreadSanitizer. The standard library and libzmq are built with it, too:
#             what is not would look like a race
#   miri      the protocol's unit tests and the codec's tests in Miri: undefined behaviour, leaks
#   valgrind  the C programs of tests/c in valgrind; the C examples run in it, and under gcc's sanitizers, in `make test`
set -uo pipefail
cd "$(dirname "$0")/.."
toolchain=${SANITIZE_TOOLCHAIN:-nightly}
host=x86_64-unknown-linux-gnu
logs=build/sanitize
mkdir -p "$logs"
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(address thread miri valgrind)
if ! sysroot=$(rustc "+$toolchain" --print sysroot 2>/dev/null); then
  echo "missing: the Rust toolchain $toolchain. Run:  rustup toolchain install $toolchain -c rust-src,miri" >&2
  exit 1
fi
runtime() { echo "$sysroot/lib/rustlib/$host/lib/librustc-${toolchain}_rt.$1.a"; }
has_component() { rustup component list --toolchain "$toolchain" --installed 2>/dev/null | grep -q "^$1"; }

nightly_tests() {
  local target=$1
  shift
  CARGO_TARGET_DIR=target/$target nice cargo "+$toolchain" "$@"
}

address() {
  # Programs that gcc links with the library need the runtime that rustc gives to its own.
  export P2PKV_TEST_LINK="-Wl,--whole-archive $(runtime asan) -Wl,--no-whole-archive -Wl,--export-dynamic -lstdc++ -lm -lrt -ldl -lresolv"
  export RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp"
  export P2PKV_STRESS_BOUND_MS=2000
  nightly_tests asan test --locked --no-default-features --target $host --no-fail-fast
}

thread() {
  has_component rust-src || { echo "missing: rustup component add rust-src --toolchain $toolchain" >&2; return 1; }
  local defines
  defines=$(sed -n "s/^CXXFLAGS_x86_64_unknown_linux_gnu = \"\(.*\)\"/\1/p" .cargo/config.toml)
  export CXXFLAGS_x86_64_unknown_linux_gnu="$defines -fsanitize=thread"
  export RUSTFLAGS="-Zsanitizer=thread" P2PKV_STRESS_BOUND_MS=5000
  export TSAN_OPTIONS=second_deadlock_stack=1
  nightly_tests tsan test --locked --no-default-features --target $host -Zbuild-std --no-fail-fast \
    --test races --test stress --test tier --test data_tcp
}

miri() {
  has_component miri || { echo "missing: rustup component add miri --toolchain $toolchain" >&2; return 1; }
  export MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=8
  # Skipped: long tables of hashes, thousands of keys, and messages of megabytes, which take Miri hours and have the same code as short ones.
  nightly_tests miri miri test --locked --no-default-features --lib protocol:: -- --skip fingerprint:: --skip freed_slots --skip after_growth &&
    nightly_tests miri miri test --locked --no-default-features --test rules &&
    nightly_tests miri miri test --locked --no-default-features --test codec -- --skip limits --skip properties
}

valgrind() {
  command -v valgrind >/dev/null || { echo "missing: valgrind" >&2; return 1; }
  cargo build --locked || return 1
  local library=$PWD/target/debug name status=0
  # A forked child abandons what was its parent's, threads and all.
  local -A leaks=([fork]=no)
  ln -sf libp2pkv.so "$library/libp2pkv.so.0"
  for name in nulls lifecycle last_error fork; do
    gcc -std=c11 -g -D_POSIX_C_SOURCE=200809L -Iinclude "tests/c/$name.c" -o "$logs/$name" -L"$library" \
      -Wl,-rpath,"$library" -lp2pkv -lpthread &&
      command valgrind --quiet --error-exitcode=99 --leak-check="${leaks[$name]:-full}" \
        --errors-for-leak-kinds=definite,indirect --fair-sched=try "$logs/$name" && echo "valgrind: $name: clean" || status=1
  done
  return $status
}

failed=()
for step in "${steps[@]}"; do
  echo "=== $step"
  start=$SECONDS
  (set -o pipefail; "$step" 2>&1 | tee "$logs/$step.log" | grep -E '^(test result|missing|valgrind:|SUMMARY|test .*FAILED)')
  [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$step")
  reports=$(grep -cE 'WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer|error: Undefined Behavior|^==[0-9]+== .*(Invalid|uninitialised|definitely lost)' "$logs/$step.log")
  echo "$step: $reports reports, $((SECONDS - start))s, log in $logs/$step.log"
  [ "$reports" -eq 0 ] || failed+=("$step")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
