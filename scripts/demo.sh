#!/bin/bash
# One process serves the KV blocks of a text, another one fetches and checks them. Called by `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=build/examples
text=build/demo.txt
log=build/demo-serve.log

cat README.md LICENSE src/protocol/*.rs > "$text"
port=${P2PKV_DEMO_PORT:-5600}

"$programs/02_serve" "$text" "$port" > "$log" 2>&1 &
serve=$!
trap 'kill "$serve" 2>/dev/null || true' EXIT

for _ in $(seq 100); do
  grep -q '^serving' "$log" && break
  if ! kill -0 "$serve" 2>/dev/null; then
    cat "$log" >&2
    echo "02_serve did not start; is port $port in use? P2PKV_DEMO_PORT=<port> make demo takes another one" >&2
    exit 1
  fi
  sleep 0.1
done

echo "02_serve (process $serve): $(head -n 1 "$log")"
echo "03_fetch: pulls them and checks every byte"
"$programs/03_fetch" 127.0.0.1 "$port" "$text"

kill -TERM "$serve"
wait "$serve"
trap - EXIT
echo "02_serve: $(tail -n 2 "$log" | head -n 1)"
