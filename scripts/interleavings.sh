#!/bin/bash
# The tier under the model checker shuttle: the same tests in as many orders of their threads' steps as the two
# variables say. Called by `make interleavings`. In a target directory of its own, since everything is built with a flag.
set -euo pipefail
cd "$(dirname "$0")/.."
export P2PKV_SHUTTLE_ITERATIONS=${P2PKV_SHUTTLE_ITERATIONS:-2000}
export P2PKV_SHUTTLE_SECONDS=${P2PKV_SHUTTLE_SECONDS:-60}
export RUSTFLAGS="${RUSTFLAGS:-} --cfg p2pkv_shuttle"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/shuttle
exec "${CARGO:-cargo}" test --locked --no-default-features --lib tier::model -- --nocapture --test-threads=1
