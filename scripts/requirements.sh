#!/bin/bash
# Checks for what `make build` or `make test` needs. As root on Debian or Ubuntu it installs what is missing;
# otherwise it prints the exact command and stops.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-build}

# command:package pairs. libzmq is compiled from its own C++ sources, hence g++.
needed=(cc:gcc g++:g++ make:make)
if [ "$purpose" = test ]; then
  needed+=(gcc:gcc python3:python3 nm:binutils readelf:binutils)
fi

packages=()
for pair in "${needed[@]}"; do
  if ! command -v "${pair%%:*}" >/dev/null; then
    echo "missing: ${pair%%:*} (package ${pair##*:})" >&2
    packages+=("${pair##*:}")
  fi
done
# The bindings to NIXL (cargo feature nixl, on by default) are made with libclang; NIXL itself is not needed.
has_libclang() {
  compgen -G "${LIBCLANG_PATH:-/nonexistent}/libclang*.so*" >/dev/null || ldconfig -p 2>/dev/null | grep -q 'libclang[-0-9.]*\.so' ||
    compgen -G '/usr/lib/llvm*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang*.so*' >/dev/null
}
if ! has_libclang; then
  echo "missing: libclang (package libclang-dev), or build with --no-default-features, without NIXL" >&2
  packages+=(libclang-dev)
fi
if [ ${#packages[@]} -gt 0 ]; then
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
  if ! command -v apt-get >/dev/null; then
    echo "install with this system's package manager: ${packages[*]}" >&2
    exit 1
  elif [ "$(id -u)" -ne 0 ]; then
    echo "run:  sudo apt-get update && sudo apt-get install -y ${packages[*]}" >&2
    exit 1
  fi
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
fi

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v "${CARGO:-cargo}" >/dev/null; then
  echo "missing: cargo (Rust $wanted or newer). Install it and open a new shell:" >&2
  echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y" >&2
  exit 1
fi
found=$("${CARGO:-cargo}" --version | awk '{print $2}')
if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
  echo "cargo is $found, Rust $wanted or newer is needed. Run:  rustup update stable" >&2
  exit 1
fi
if [ "$purpose" = test ]; then
  for component in fmt clippy; do
    if ! "${CARGO:-cargo}" "$component" --version >/dev/null 2>&1; then
      echo "missing: cargo $component. Run:  rustup component add rustfmt clippy" >&2
      exit 1
    fi
  done
fi
