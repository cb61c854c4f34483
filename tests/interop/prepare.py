"""Fills the cache that the live tests run from, once for each version of vLLM.

    python3 prepare.py VERSION...

The cache is $P2PKV_INTEROP_CACHE, default ~/.cache/p2pkv-interop, never inside the source tree. In it:

    venv/               Python with NIXL and what vLLM's P2P tier imports, from PyPI
    vllm-VERSION/       the few modules of that vLLM wheel which the tier needs; the wheel itself is deleted again
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

NIXL = os.environ.get("P2PKV_NIXL_WHEEL", "nixl-cu12==1.5.1")

# What the tier imports. NIXL is installed without its dependencies: those are for GPUs.
LIBRARIES = ["pyzmq", "msgspec", "numpy", "typing_extensions", "cbor2", "xxhash"]

# Paths inside the vLLM wheel. What is missing in a version is not needed there.
NEEDED = [
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading/canonical_mapping.py",
    "vllm/distributed/nixl_utils.py",
    "vllm/envs.py",
    "vllm/logger.py",
    "vllm/logging_utils/",
    "vllm/utils/hashing.py",
    "vllm/v1/__init__.py",
    "vllm/v1/core/kv_cache_utils.py",
    "vllm/v1/kv_cache_layout.py",
    "vllm/v1/kv_hints/",
    "vllm/v1/kv_offload/",
    "vllm/v1/metrics/__init__.py",
    "vllm/v1/metrics/cache_hit_source.py",
]


def cache() -> pathlib.Path:
    default = pathlib.Path.home() / ".cache" / "p2pkv-interop"
    return pathlib.Path(os.environ.get("P2PKV_INTEROP_CACHE", default))


def python() -> pathlib.Path:
    return cache() / "venv" / "bin" / "python"


def modules(version: str) -> pathlib.Path:
    """Where the unpacked modules of a version are."""
    return cache() / f"vllm-{version}"


def nixl_library() -> pathlib.Path:
    """The directory of the C library that our side loads: the same file that vLLM's side uses."""
    found = sorted(cache().glob("venv/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs"))
    if not found:
        raise SystemExit(f"no NIXL in {cache()}; run prepare.py first")
    return found[0]


def pip(*arguments: str) -> None:
    subprocess.run([python(), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def make_venv() -> None:
    stamp = cache() / f"venv/.with-{NIXL.replace('/', '_')}"
    if stamp.exists():
        return
    if not python().exists():
        venv.create(cache() / "venv", with_pip=True)
    pip("install", *LIBRARIES)
    pip("install", "--no-deps", NIXL)
    stamp.touch()


def unpack_vllm(version: str) -> None:
    tier = modules(version) / "vllm/v1/kv_offload/tiering/p2p/manager.py"
    if tier.exists():
        return
    with tempfile.TemporaryDirectory(dir=cache()) as place:
        pip("download", "--no-deps", "--only-binary", ":all:", "--dest", place, f"vllm=={version}")
        (wheel,) = pathlib.Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if any(name == path or path.endswith("/") and name.startswith(path) for path in NEEDED):
                    archive.extract(name, modules(version))
    if not tier.exists():
        raise SystemExit(f"vLLM {version} has no P2P tier; the first with one is 0.25.0")


def prepare(version: str) -> None:
    cache().mkdir(parents=True, exist_ok=True)
    make_venv()
    unpack_vllm(version)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["0.33.0"]:
        prepare(wanted)
        print(f"vLLM {wanted} is ready in {cache()}")
