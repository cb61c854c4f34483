#!/bin/bash
# The long form of the chaos cases, one after another, and the table of what came of them. Called by `make soak`.
set -euo pipefail
cd "$(dirname "$0")/.."
report=$PWD/build/chaos.jsonl
mkdir -p build
rm -f "$report"
verdict=0
P2PKV_SOAK=1 P2PKV_CHAOS_REPORT="$report" timeout 1800 \
  "${CARGO:-cargo}" test --locked --test chaos -- --test-threads=1 || verdict=$?
# Cases that failed wrote no line; the others count all the same.
python3 scripts/chaos-table.py "$report" docs/reliability.md
exit "$verdict"
