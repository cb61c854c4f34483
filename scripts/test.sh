#!/bin/bash
# Runs every check, goes on after a failure, and ends with a table of counts. Called by `make test`.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
logs=build/test-logs
mkdir -p "$logs"
rows=()
total=0
failed_steps=0

# What a log says of tests: "<passed> <failed> <skipped>"; cargo test, cargo nextest and unittest each have their own
# words.
count() {
  awk '
    /^test result:/ { passed += $4; failed += $6; skipped += $8 }
    /^ *Summary \[/ {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^(failed|timed)/) failed += $(i - 1)
        if ($i ~ /^skipped/) skipped += $(i - 1)
      }
    }
    /^Ran [0-9]+ tests? in/ { ran = $2 }
    /^(OK|FAILED)( \(|$)/ && ran != "" {
      bad = 0; n = split($0, words, /[(), ]+/)
      for (i = 1; i <= n; i++) if (split(words[i], pair, "=") == 2) {
        if (pair[1] == "skipped") { ran -= pair[2]; skipped += pair[2] } else bad += pair[2]
      }
      passed += ran - bad; failed += bad; ran = ""
    }
    END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

step() {
  local name=$1 log="$logs/${1// /-}.log" start=$SECONDS verdict=ok passed failed skipped
  shift
  echo "=== $name: $*"
  if ! "$@" 2>&1 | tee "$log"; then
    verdict=FAILED
    failed_steps=$((failed_steps + 1))
  fi
  read -r passed failed skipped < <(count "$log")
  total=$((total + passed))
  rows+=("$(printf '%-16s %-8s %6d %6d %7d %5ds' "$name" "$verdict" "$passed" "$failed" "$skipped" $((SECONDS - start)))")
}

rust_tests() {
  if "$cargo" nextest --version >/dev/null 2>&1; then
    "$cargo" nextest run --locked --no-fail-fast && "$cargo" test --locked --doc
  else
    "$cargo" test --locked --no-fail-fast
  fi
}

# The feature is compiled for this one test program only, and everything it depends on is there already.
mutations() {
  "$cargo" test --locked --features mutations --test sim mutations::
}

release() {
  "$cargo" build --release --locked && ln -sf libp2pkv.so "$target/release/libp2pkv.so.0"
}

python_tests() {
  P2PKV_LIBRARY="$(realpath "$target")/release/libp2pkv.so.0" PYTHONPATH=python \
    timeout 900 python3 -W error -m unittest discover -v -s python/tests -t python
}

step "format" "$cargo" fmt --check
step "clippy" "$cargo" clippy --locked --all-targets -- -D warnings
step "docs" env RUSTDOCFLAGS=-Dwarnings "$cargo" doc --locked --no-deps
step "rust tests" rust_tests
step "mutations" mutations
step "release build" release
step "C and Python" python_tests
step "llama.cpp" make --no-print-directory llama-check

echo
sed -n "s/^\(test_[^ ]*\).* skipped '\(.*\)'$/skipped: \1: \2/p" "$logs/C-and-Python.log"
printf '%-16s %-8s %6s %6s %7s %6s\n' step verdict passed failed skipped time
printf '%s\n' "${rows[@]}"
echo "tests passed: $total; steps failed: $failed_steps; time: ${SECONDS}s"
[ "$failed_steps" -eq 0 ]
