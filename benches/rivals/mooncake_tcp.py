"""Mooncake's transfer engine over TCP: one process writes scattered blocks into another.

    mooncake_tcp.py BLOCK_LEN BLOCKS

Commands: `run`, which moves every block once and gives the seconds until the writer knows that they are there.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import answers
import numpy

# Before the engine is loaded.
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
os.environ.setdefault("GLOG_minloglevel", "2")

from mooncake.engine import TransferEngine  # noqa: E402

HOST = "127.0.0.1"


class Side:
    def __init__(self, block_len: int, blocks: int, fill: int):
        self.memory = numpy.full(block_len * blocks, fill, numpy.uint8)
        self.address = self.memory.ctypes.data
        self.engine = TransferEngine()
        check(self.engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""), "initialize")
        check(self.engine.register_memory(self.address, self.memory.nbytes), "register_memory")
        self.name = f"{HOST}:{self.engine.get_rpc_port()}"


def check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what} gave {status}")


def target(block_len: int, blocks: int) -> None:
    side = Side(block_len, blocks, 0)
    print("target", side.name, side.address, flush=True)
    for _ in sys.stdin:
        print("target", int(side.memory.min()), flush=True)


class Writer:
    def __init__(self, block_len: int, blocks: int):
        command = [sys.executable, __file__, str(block_len), str(blocks), "target"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.target, there = self.answer()
        self.side = Side(block_len, blocks, 0xA5)
        order = random.Random(1)
        numbers = range(blocks)
        self.sources = [self.side.address + block * block_len for block in order.sample(numbers, blocks)]
        self.targets = [int(there) + block * block_len for block in order.sample(numbers, blocks)]
        self.lengths = [block_len] * blocks
        self.run()
        self.process.stdin.write("check\n")
        if self.answer() != [str(0xA5)]:
            raise RuntimeError("Mooncake moved wrong bytes")

    def answer(self) -> list[str]:
        """Mooncake prints to the standard output as well."""
        for line in self.process.stdout:
            first, *words = line.split() or [""]
            if first == "target":
                return words
        raise RuntimeError("the target process has ended")

    def run(self) -> list[float]:
        began = time.perf_counter()
        status = self.side.engine.batch_transfer_sync_write(self.target, self.sources, self.targets, self.lengths)
        took = time.perf_counter() - began
        check(status, "batch_transfer_sync_write")
        return [took]


def start() -> dict:
    return {"run": Writer(int(sys.argv[1]), int(sys.argv[2])).run}


if __name__ == "__main__":
    if sys.argv[3:] == ["target"]:
        target(int(sys.argv[1]), int(sys.argv[2]))
    else:
        answers.serve(start)
