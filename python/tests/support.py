"""What the tests share."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

import p2pkv
from p2pkv import _ffi

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK_LEN = 4096
WAIT_S = 30.0
"""Longer than anything here takes; a test that needs it has failed."""


def make_keys(count: int, name: str = "test") -> list[bytes]:
    return [hashlib.sha256(f"{name} {i}".encode()).digest() + bytes(4) for i in range(count)]


def block_bytes(key: bytes, block_len: int = BLOCK_LEN) -> bytes:
    """Bytes that belong to the key, so that a block in the wrong place is seen."""
    return (key * (block_len // len(key) + 1))[:block_len]


def blocks_of(keys: list[bytes]) -> bytes:
    return b"".join(block_bytes(key) for key in keys)


def symmetric(peer: p2pkv.Tier, kv_request_id: str = "r1") -> dict[str, Any]:
    host, port = peer.address
    return {"remote_kv_source": {"kv_request_id": kv_request_id, "remote_host": host, "remote_port": port}}


def decoder(host: str, port: int, kv_request_id: str = "r1") -> dict[str, Any]:
    return {"remote_prefiller": {"kv_request_id": kv_request_id, "remote_host": host, "remote_port": port}}


def prefiller(kv_request_id: str = "r1") -> dict[str, Any]:
    return {"remote_decoder": {"kv_request_id": kv_request_id}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        time.sleep(0.002)


@contextmanager
def progressing(*tiers: p2pkv.Tier) -> Iterator[None]:
    """Advances tiers that have no thread of their own from another thread."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            for tier in tiers:
                tier.make_progress()
            stop.wait(0.001)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def library_dir() -> Path:
    """Where the library that these tests run against lies."""
    return Path(_ffi.library()._name).resolve().parent


def compile_c(source: Path, program: Path, *flags: str) -> None:
    """Compiles against this tree's header and the library under test; raises with the compiler's words."""
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{ROOT / 'include'}", *flags]
    command += ["-o", str(program), str(source), f"-L{library_dir()}", f"-Wl,-rpath,{library_dir()}", "-lp2pkv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")


def start(*command: object) -> subprocess.Popen[str]:
    """A program of which all that it says is kept."""
    return subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(process: subprocess.Popen[str], timeout: float = 2 * WAIT_S) -> tuple[int, str]:
    """Exit code and output; a program that does not end in time is a failure."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"still running: {process.args!r}\n{output}") from None
    return process.returncode, output


def python_process(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process that has this tree's module and the same library."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), P2PKV_LIBRARY=_ffi.library()._name)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
