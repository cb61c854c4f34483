"""What both kinds of peer share: commands and answers as JSON, one a line, and how keys and blocks are named in them.

    keys     {"family": F, "first": 0, "count": N}: key i is sha256("F:i") and a group index of 0, as vLLM's are
    blocks   a list, or {"first": 0, "count": N, "step": 1}

A peer announces itself with one line, then answers each command with one: {"ok": true, ...} or {"ok": false, "error": ...}.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import sys
import time
import traceback

# Between two ticks, as vLLM's own thread does.
PAUSE_S = 0.001


def keys_of(named) -> list[bytes]:
    first = named.get("first", 0)
    numbers = range(first, first + named["count"])
    return [hashlib.sha256(f"{named['family']}:{number}".encode()).digest() + bytes(4) for number in numbers]


def blocks_of(named) -> list[int]:
    if isinstance(named, list):
        return named
    first, step = named.get("first", 0), named.get("step", 1)
    return list(range(first, first + named["count"] * step, step))


class Blocks:
    """The region's bytes, block by block."""

    def __init__(self, memory: memoryview, block_len: int):
        self.memory = memory
        self.block_len = block_len

    def __getitem__(self, block: int) -> memoryview:
        return self.memory[block * self.block_len : (block + 1) * self.block_len]

    def fill(self, blocks, seed: str) -> None:
        for block in blocks_of(blocks):
            self[block][:] = random.Random(f"{seed}:{block}").randbytes(self.block_len)

    def clear(self, blocks) -> None:
        for block in blocks_of(blocks):
            self[block][:] = bytes(self.block_len)

    def digests(self, blocks) -> list[str]:
        return [hashlib.blake2b(self[block], digest_size=16).hexdigest() for block in blocks_of(blocks)]


class Peer:
    """What both kinds of peer have: blocks, and a tier that goes on while something is waited for. Subclasses set `blocks`."""

    def tick(self) -> None:
        raise NotImplementedError

    def until(self, done, timeout: float) -> bool:
        give_up = time.monotonic() + timeout
        while not done():
            if time.monotonic() > give_up:
                return False
            self.tick()
            time.sleep(PAUSE_S)
        return True

    def do_fill(self, blocks, seed):
        self.blocks.fill(blocks, seed)

    def do_clear(self, blocks):
        self.blocks.clear(blocks)

    def do_digests(self, blocks):
        return {"digests": self.blocks.digests(blocks)}


def claim_stdout():
    """Keeps the pipe for answers alone: libraries print what they like, to the log."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return pipe


def serve(peer: Peer, out) -> None:
    """Runs `peer.do_COMMAND(**arguments)` for each line, and `peer.tick()` in between, until the input ends."""

    def say(answer) -> None:
        out.write(json.dumps(answer) + "\n")

    say({"ok": True, **peer.do_info()})
    pending = b""
    while True:
        if not select.select([0], [], [], PAUSE_S)[0]:
            peer.tick()
            continue
        chunk = os.read(0, 1 << 20)
        if not chunk:
            return
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            arguments = json.loads(line)
            command = arguments.pop("do")
            try:
                say({"ok": True, **(getattr(peer, f"do_{command}")(**arguments) or {})})
            except Exception as error:
                traceback.print_exc()
                say({"ok": False, "error": f"{type(error).__name__}: {error}"})
