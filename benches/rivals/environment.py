"""Makes the rivals ready to run and prints one JSON object: where they are, and why those are missing that are.

They live in the cache of the live tests (see tests/interop/prepare.py), outside of the source tree.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "interop"))

import prepare  # noqa: E402

VLLM = "0.33.0"
MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"

# What Mooncake is linked with, as Debian and Ubuntu name it.
LIBRARIES = ["libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200", "libnuma1"]


def mooncake_modules() -> pathlib.Path:
    return prepare.cache() / "mooncake"


def libraries() -> list[str]:
    return [str(path) for path in sorted((prepare.cache() / "libraries").glob("root/**/x86_64-linux-gnu"))]


def import_mooncake() -> str | None:
    """What is wrong with it, if anything."""
    command = [prepare.python(), "-c", "import mooncake.engine"]
    environment = {"PYTHONPATH": str(mooncake_modules()), "LD_LIBRARY_PATH": ":".join(libraries())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


def fetch_libraries() -> None:
    """Unpacks them in the cache: nothing is installed on the system."""
    place = prepare.cache() / "libraries"
    place.mkdir(exist_ok=True)
    subprocess.run(["apt-get", "--quiet", "download", *LIBRARIES], cwd=place, check=True, capture_output=True)
    for package in place.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, place / "root"], check=True, capture_output=True)


def prepare_nixl() -> str:
    prepare.cache().mkdir(parents=True, exist_ok=True)
    prepare.make_venv()
    return str(prepare.nixl_library())


def prepare_mooncake() -> str:
    prepare.cache().mkdir(parents=True, exist_ok=True)
    prepare.make_venv()
    if not mooncake_modules().exists():
        prepare.pip("install", "--no-deps", "--only-binary", ":all:", "--target", mooncake_modules(), MOONCAKE)
    why_not = import_mooncake()
    if why_not and ".so" in why_not:
        fetch_libraries()
        why_not = import_mooncake()
    if why_not:
        raise RuntimeError(why_not)
    return MOONCAKE.partition("==")[2]


def prepare_vllm() -> str:
    prepare.prepare(VLLM)
    return VLLM


def in_words(error: BaseException) -> str:
    """One line without paths: it ends up in a file that others read."""
    if isinstance(error, subprocess.CalledProcessError):
        words = [word for word in map(str, error.cmd) if "/" not in word and not word.startswith("-")]
        return f"`{' '.join(words)}` ended with status {error.returncode}"
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return text.replace(str(prepare.cache()), "the cache").replace(str(pathlib.Path.home()), "~")


def attempt(step) -> dict:
    try:
        return {"ready": step()}
    # `SystemExit` is how prepare.py gives up.
    except (Exception, SystemExit) as error:
        return {"missing": in_words(error)}


if __name__ == "__main__":
    # pip's own messages must not mix with the answer.
    steps = {"nixl": prepare_nixl, "mooncake": prepare_mooncake, "vllm": prepare_vllm}
    report = {name: attempt(step) for name, step in steps.items()}
    report["python"] = str(prepare.python())
    report["mooncake_modules"] = str(mooncake_modules())
    report["libraries"] = ":".join(libraries())
    print(json.dumps(report))
