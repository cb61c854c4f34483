"""Two vLLM P2P tiers on one machine, driven by the benchmark.

    vllm_tier.py VERSION busy|paced nixl|null BLOCK_LEN BLOCKS

busy: both poll without a pause; paced: every millisecond, as the thread does that vLLM polls with. null: a data plane that
moves nothing. Commands, each giving seconds:

    run              a pull of all blocks, scattered, the store being parked at the producer before
    one COUNT        as many pulls of one block
    lookup KEYS COUNT   as many lookups, all hits
    cpu KEYS         CPU of both sides for a pull of so many blocks
"""

from __future__ import annotations

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "interop"))

import answers  # noqa: E402
import peers  # noqa: E402
import prepare  # noqa: E402
from peers import cached_by, prefilled_by, serves  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CHECKED = 4

# Of one command, however many samples were asked for.
LIMIT_S = 8.0


class Pair:
    def __init__(self, version: str, pace: str, data: str, block_len: int, blocks: int):
        self.blocks = blocks
        self.last = 0
        options = {"block_len": block_len, "num_blocks": blocks}
        options |= {"pause_s": 0 if pace == "busy" else 0.001, "null": data == "null"}
        command = [str(prepare.python()), str(HERE / "vllm_process.py"), version]
        quiet = {"PYTHONDONTWRITEBYTECODE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        self.producer, self.consumer = (peers.Peer("vLLM", command, options, quiet) for _ in range(2))
        self.producer.fill(blocks={"count": blocks}, seed="bench")
        self.consumer.clear(blocks={"count": blocks})
        self.pull(blocks)
        if data != "null":
            self.check()

    def places(self, count: int) -> list[int]:
        """No two blocks are neighbours on both sides."""
        return [block * 5 % count if count % 5 else block for block in range(count)]

    def check(self) -> None:
        there = self.producer.digests(blocks={"count": CHECKED})
        here = self.consumer.digests(blocks=self.places(self.blocks)[:CHECKED])
        if there != here:
            raise RuntimeError("vLLM moved wrong bytes")

    def pull(self, count: int) -> tuple[float, float]:
        """Seconds, and CPU seconds of both sides."""
        self.last += 2
        name, job, named = f"p{self.last}", self.last, {"family": "bench", "count": count}
        self.producer.request(name=name, params=serves(name))
        self.producer.store(name=name, job=job, keys=named, blocks={"count": count})
        self.consumer.request(name=name, params=prefilled_by(self.producer, name))
        before = self.producer.cpu()["seconds"]
        took = self.consumer.timed_load(name=name, job=job + 1, keys=named, blocks=self.places(count))
        cpu = self.producer.cpu()["seconds"] - before + took["cpu"]
        self.producer.results(jobs=[job])
        for peer in (self.producer, self.consumer):
            peer.finish(name=name)
            peer.forget()
        return took["seconds"], cpu

    def run(self) -> list[float]:
        return [self.pull(self.blocks)[0]]

    def one(self, count: str) -> list[float]:
        return bounded(int(count), lambda: self.pull(1)[0])

    def cpu(self, keys: str) -> list[float]:
        return [self.pull(int(keys))[1]]

    def lookup(self, keys: str, count: str) -> list[float]:
        named = {"family": "bench", "count": int(keys)}
        self.producer.offer(keys=named, blocks={"count": int(keys)})

        def once() -> float:
            self.last += 2
            name = f"l{self.last}"
            self.consumer.request(name=name, params=cached_by(self.producer, name))
            took = self.consumer.timed_lookup(name=name, keys=named)["seconds"]
            self.consumer.finish(name=name)
            self.producer.idle()
            return took

        return bounded(int(count), once)


def bounded(count: int, sample) -> list[float]:
    limit = time.monotonic() + LIMIT_S
    sample()
    samples = []
    while len(samples) < count and (time.monotonic() < limit or not samples):
        samples.append(sample())
    return samples


def start() -> dict:
    version, pace, data, block_len, blocks = sys.argv[1:]
    pair = Pair(version, pace, data, int(block_len), int(blocks))
    return {"run": pair.run, "one": pair.one, "lookup": pair.lookup, "cpu": pair.cpu}


if __name__ == "__main__":
    answers.serve(start)
