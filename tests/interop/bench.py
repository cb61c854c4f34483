"""The same PD pulls by two vLLM tiers and by two of ours, over NIXL, in one run: `python3 bench.py [VERSION]`.

Latency is that of the puller's engine, from `submit_load` until it knows the result; vLLM's tier is polled every
millisecond, as its own thread does it. CPU is that of both processes meanwhile. Prints one line for each size.
"""

from __future__ import annotations

import statistics
import sys

import peers
import prepare
from peers import prefilled_by, serves

BLOCK_LEN = 16384
MOST = 8192
ROUNDS = 9


def pulls(producer: peers.Peer, consumer: peers.Peer, count: int) -> tuple[float, float]:
    """Median seconds of a pull, and CPU seconds of one."""
    named = {"family": "bench", "count": count}
    # No two blocks are neighbours on both sides.
    places = [block * 5 % count if count % 5 else block for block in range(count)]
    seconds, cpu = [], []
    for number in range(ROUNDS + 1):
        name = f"{count}-{number}"
        producer.request(name=name, params=serves(name))
        producer.store(name=name, job=2 * number, keys=named, blocks={"count": count})
        consumer.request(name=name, params=prefilled_by(producer, name))
        before = producer.cpu()["seconds"] + consumer.cpu()["seconds"]
        took = consumer.timed_load(name=name, job=2 * number + 1, keys=named, blocks=places)["seconds"]
        used = producer.cpu()["seconds"] + consumer.cpu()["seconds"] - before
        # The first sets the connection up.
        if number > 0:
            seconds.append(took)
            cpu.append(used)
        producer.results(jobs=[2 * number])
        producer.finish(name=name)
        consumer.finish(name=name)
        producer.forget(), consumer.forget()
    return statistics.median(seconds), statistics.mean(cpu)


def measure(start) -> dict[int, tuple[float, float]]:
    pair = [start() for _ in range(2)]
    try:
        pair[0].fill(blocks={"count": MOST}, seed="bench")
        return {count: pulls(*pair, count) for count in (1, 64, 1024, MOST)}
    finally:
        for peer in pair:
            peer.close()


def main() -> None:
    version = sys.argv[1] if len(sys.argv) > 1 else "0.33.0"
    prepare.prepare(version)
    size = {"num_blocks": MOST, "block_len": BLOCK_LEN}
    theirs = measure(lambda: peers.vllm(version, **size))
    ours = measure(lambda: peers.ours(**size))
    print(f"blocks of {BLOCK_LEN >> 10} KiB   vLLM {version}            this library         ratio of latency, of CPU")
    for count, (latency, cpu) in theirs.items():
        own_latency, own_cpu = ours[count]
        print(
            f"{count:6}   {latency * 1e6:9.0f} us {cpu / count * 1e6:8.1f} us CPU/block"
            f"   {own_latency * 1e6:9.0f} us {own_cpu / count * 1e6:8.1f} us CPU/block"
            f"   {latency / own_latency:5.1f} {cpu / max(own_cpu, 1e-9):5.1f}"
        )


if __name__ == "__main__":
    main()
