#!/bin/bash
# Runs each fuzz target for FUZZ_SECONDS (default 60). With names, only those. Called by `make fuzz`.
#
#   scripts/fuzz.sh                 all targets
#   scripts/fuzz.sh session frames  these
#   scripts/fuzz.sh --keep          afterwards, chooses anew which inputs are committed
#
# Inputs that reach something new go to build/fuzz/<target>, crashing ones to fuzz/artifacts/<target>. The committed
# seeds and corpora in fuzz/corpus are only read, and written by --keep.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
toolchain=${FUZZ_TOOLCHAIN:-nightly}
declare -A longest=([codec]=4096 [params]=1024 [session]=800 [frames]=400 [capi]=300)
keep=false
targets=()
for word in "$@"; do
  if [ "$word" = --keep ]; then keep=true; else targets+=("$word"); fi
done
[ ${#targets[@]} -gt 0 ] || targets=(codec params session frames capi)

if ! cargo "+$toolchain" fuzz --version >/dev/null 2>&1; then
  echo "missing: cargo-fuzz or the toolchain $toolchain. Run:" >&2
  echo "  rustup toolchain install $toolchain && cargo install cargo-fuzz --locked" >&2
  exit 1
fi

failed=()
for target in "${targets[@]}"; do
  echo "=== $target: ${seconds}s"
  work=build/fuzz/$target
  log=build/fuzz/$target.log
  mkdir -p "$work"
  if ! cargo "+$toolchain" fuzz run "$target" "$work" "fuzz/corpus/$target" -- -max_total_time="$seconds" \
    -max_len="${longest[$target]}" -len_control=20 -timeout=25 -print_final_stats=1 >"$log" 2>&1; then
    failed+=("$target")
    tail -n 40 "$log"
  fi
  # The last line of progress has the coverage: edges, features, inputs.
  grep -E '^#[0-9]+.* cov: ' "$log" | tail -n 1 || true
  if $keep; then
    notes=build/fuzz/$target.merge
    rm -rf "$notes" "$notes.out" && mkdir "$notes.out"
    cargo "+$toolchain" fuzz run "$target" "$notes.out" "fuzz/corpus/$target" "$work" -- -merge=1 \
      -merge_control_file="$notes" >>"$log" 2>&1
    fuzz/keep.py "$notes" "fuzz/corpus/$target"
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "crashes in: ${failed[*]} (see fuzz/artifacts)"; exit 1; }
