"""Our tier and a real vLLM tier, over real NIXL, in both directions. Run by run.py, once for each version of vLLM.

Each case is written once, for a producer and a consumer; `WeProduce` and `WeConsume` say who is who. Every case has fresh
peers. One that fails while the vLLM peer has gone deaf (its own fault, see `Peer.is_deaf`) is repeated, and that is
reported.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import unittest

import peers
from peers import cached_by, prefilled_by, serves

VERSION = os.environ.get("P2PKV_VLLM_VERSION", "0.33.0")
ATTEMPTS = 3
SOON = 5.0


def live(case):
    """Repeats a case whose vLLM peer has gone deaf."""

    @functools.wraps(case)
    def repeated(self):
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return case(self)
            except AssertionError as failure:
                deaf = [peer for peer in self.started if peer.kind == "vLLM" and peer.is_deaf()]
                if attempt == ATTEMPTS or not deaf:
                    raise AssertionError(f"{failure}\n{self.logs()}") from failure
                print(f"\n{self.id()}: vLLM has gone deaf, once more with fresh peers", file=sys.stderr)
                self.leave()

    return repeated


def keys(family: str, count: int, first: int = 0) -> dict:
    return {"family": family, "first": first, "count": count}


def span(first: int, count: int, step: int = 1) -> dict:
    return {"first": first, "count": count, "step": step}


class Live(unittest.TestCase):
    """What the cases need; no cases itself."""

    we_produce = True

    def setUp(self):
        self.started = []

    def tearDown(self):
        self.leave()

    def leave(self):
        statuses = [(peer.kind, peer.close()) for peer in self.started if peer.process.poll() is None]
        self.started = []
        # Also an end with NIXL loaded is a clean one. vLLM's peer may hang in its own end, and is killed then.
        self.assertNotIn(True, [kind == "own" and status != 0 for kind, status in statuses], statuses)

    def logs(self) -> str:
        return "\n".join(f"--- {peer.kind} {peer.options['port']}\n{peer.log_tail(15)}" for peer in self.started)

    def start(self, we: bool, **options) -> peers.Peer:
        if we:
            # With vLLM's fingerprint, that of the model it runs.
            settings = {"config_fingerprint": self.fingerprint(), **options.pop("settings", {})}
            peer = peers.ours(settings=settings, **options)
        else:
            options.pop("settings", None)
            peer = peers.vllm(VERSION, **options)
        self.started.append(peer)
        return peer

    @classmethod
    def known(cls) -> dict:
        """What this version of vLLM says of itself."""
        if not hasattr(Live, "_known"):
            peer = peers.vllm(VERSION)
            Live._known = peer.info
            peer.close()
        return Live._known

    def fingerprint(self) -> str:
        return self.known()["fingerprint"]

    def need(self, ability: str) -> None:
        if ability not in self.known()["can"]:
            self.skipTest(f"vLLM {VERSION} has no {ability}")

    def producer(self, **options) -> peers.Peer:
        return self.start(self.we_produce, settings=self.seed(), **options)

    def consumer(self, **options) -> peers.Peer:
        return self.start(not self.we_produce, settings=self.seed(), **options)

    def seed(self) -> dict:
        return {"hash_seed": self.known()["hash_seed"]} if self.known()["hash_seed"] else {}

    def pair(self, **options):
        return self.producer(**options), self.consumer(**options)

    def succeeds(self, peer, *jobs, timeout: float = 10.0):
        answer = peer.results(jobs=jobs, timeout=timeout)
        self.assertEqual(answer["results"], [True] * len(jobs), answer)

    def fails(self, peer, job, timeout: float = SOON, reported: bool = True):
        """The job ends without its bytes. `reported`: this version gives a result at all."""
        if peer.kind == "vLLM" and not reported:
            self.assertNotEqual(peer.results(jobs=[job], timeout=0.3)["results"], [True])
            return None
        answer = peer.results(jobs=[job], timeout=timeout)
        self.assertEqual(answer["results"], [False], answer)
        return answer

    def same_bytes(self, producer, sources, consumer, destinations):
        there = producer.digests(blocks=sources)["digests"]
        here = consumer.digests(blocks=destinations)["digests"]
        self.assertEqual(there, here)
        self.assertEqual(len(set(there)), len(there), "blocks that differ")


class Cases:
    """For a producer and a consumer of either kind."""

    # --- prefill/decode ---

    @live
    def test_pd_with_the_prefiller_first(self):
        producer, consumer = self.pair()
        producer.fill(blocks=span(0, 16), seed="a")
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("a", 8), blocks=span(0, 8))
        producer.store(name="p", job=2, keys=keys("a", 8, 8), blocks=span(8, 8))
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        scattered = [40 + 5 * i % 16 for i in range(16)]
        consumer.load(name="c", job=3, keys=keys("a", 16), blocks=scattered)
        self.succeeds(consumer, 3)
        self.succeeds(producer, 1, 2)
        self.same_bytes(producer, span(0, 16), consumer, scattered)
        untouched = consumer.digests(blocks=span(0, 40))["digests"]
        self.assertEqual(len(set(untouched)), 1, "stray writes")
        producer.finish(name="p")
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    @live
    def test_pd_with_the_decoder_first_and_stores_in_parts(self):
        producer, consumer = self.pair()
        producer.fill(blocks=span(0, 20), seed="b")
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=3, keys=keys("b", 16), blocks=span(16, 16))
        peers.eventually("a session", lambda: consumer.id in producer.sessions()["sessions"])
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("b", 10), blocks=span(0, 10))
        self.assertEqual(consumer.results(jobs=[3], timeout=0.2)["results"], [None], "10 of 16 blocks are no load")
        # Four of these nobody has asked for.
        producer.store(name="p", job=2, keys=keys("b", 10, 10), blocks=span(10, 10))
        self.succeeds(consumer, 3)
        self.succeeds(producer, 1, 2)
        self.same_bytes(producer, span(0, 16), consumer, span(16, 16))
        producer.finish(name="p")
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    @live
    def test_pd_many_requests_at_a_time(self):
        producer, consumer = self.pair()
        producer.fill(blocks=span(0, 32), seed="m")
        for i in range(16):
            first = i % 2 == 0
            if first:
                producer.request(name=f"p{i}", params=serves(f"kv{i}"))
                producer.store(name=f"p{i}", job=i, keys=keys("m", 2, 2 * i), blocks=span(2 * i, 2))
            consumer.request(name=f"c{i}", params=prefilled_by(producer, f"kv{i}"))
            consumer.load(name=f"c{i}", job=i, keys=keys("m", 2, 2 * i), blocks=span(2 * i, 2))
            if not first:
                producer.request(name=f"p{i}", params=serves(f"kv{i}"))
                producer.store(name=f"p{i}", job=i, keys=keys("m", 2, 2 * i), blocks=span(2 * i, 2))
        self.succeeds(consumer, *range(16))
        self.succeeds(producer, *range(16))
        self.same_bytes(producer, span(0, 32), consumer, span(0, 32))
        for i in range(16):
            producer.finish(name=f"p{i}")
            consumer.finish(name=f"c{i}")
        producer.idle(), consumer.idle()

    @live
    def test_pd_producer_gives_up(self):
        """The prefiller's request ends with blocks asked for and not stored: the decoder is told at once."""
        producer, consumer = self.pair()
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=3, keys=keys("g", 4), blocks=span(0, 4))
        peers.eventually("a session", lambda: consumer.id in producer.sessions()["sessions"])
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("g", 2), blocks=span(0, 2))
        # The fetch is there when its two blocks have gone out; ours reports a round's stores when the round is over.
        if producer.kind == "vLLM":
            self.succeeds(producer, 1)
        else:
            peers.eventually("a fetch", lambda: producer.peers()["peers"][0]["bytes_out"] > 0)
        producer.finish(name="p")
        self.fails(consumer, 3)
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    @live
    def test_consumer_finishes_while_its_load_waits(self):
        producer, consumer = self.pair()
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=3, keys=keys("w", 4), blocks=span(0, 4))
        peers.eventually("a session", lambda: consumer.id in producer.sessions()["sessions"])
        time.sleep(0.1)  # either order of fetch and abort must end well; this one is the usual
        consumer.finish(name="c")
        answer = self.fails(consumer, 3, reported="reports_aborted_loads" in self.known()["can"])
        if consumer.kind == "own":
            self.assertEqual(answer["outcomes"], ["ABORTED"])
            self.assertEqual(answer["flags"], [0], "acknowledged, so nothing can be written late")
        producer.idle(), consumer.idle()

    @live
    def test_consumer_finishes_in_the_middle_of_a_load(self):
        """Every job has one end, whichever way, and the next request works."""
        producer, consumer = self.pair(num_blocks=2048)
        producer.fill(blocks=span(0, 1024), seed="f")
        for i in range(6):
            producer.request(name=f"p{i}", params=serves(f"kv{i}"))
            producer.store(name=f"p{i}", job=i, keys=keys("f", 1024), blocks=span(0, 1024))
            consumer.request(name=f"c{i}", params=prefilled_by(producer, f"kv{i}"))
            consumer.load(name=f"c{i}", job=i, keys=keys("f", 1024), blocks=span(0, 1024, 2))
            time.sleep(0.002 * i)
            consumer.finish(name=f"c{i}")
            if consumer.kind == "own" or "reports_aborted_loads" in self.known()["can"]:
                self.assertIn(consumer.results(jobs=[i])["results"], ([True], [False]))
            producer.finish(name=f"p{i}")
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=90, keys=keys("f", 64), blocks=span(0, 64))
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=91, keys=keys("f", 64), blocks=span(0, 64))
        self.succeeds(consumer, 91)
        self.same_bytes(producer, span(0, 64), consumer, span(0, 64))

    @live
    def test_late_fetch_after_the_store_was_given_up(self):
        producer = self.start(
            self.we_produce, unbound_store_s=0.3, settings={**self.seed(), "unbound_store_timeout": 0.3}
        )
        consumer = self.consumer()
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("l", 2), blocks=span(0, 2))
        self.fails(producer, 1)
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=3, keys=keys("l", 2), blocks=span(0, 2))
        if producer.kind == "own" or "refuses_late_fetches" in self.known()["can"]:
            self.fails(consumer, 3)
        else:
            # Before 0.30 vLLM takes the fetch, and a later store serves it.
            producer.fill(blocks=span(0, 2), seed="l")
            peers.eventually("a session", lambda: consumer.id in producer.sessions()["sessions"])
            producer.store(name="p", job=2, keys=keys("l", 2), blocks=span(0, 2))
            self.succeeds(consumer, 3)
            self.same_bytes(producer, span(0, 2), consumer, span(0, 2))
        consumer.finish(name="c")

    @live
    def test_load_deadline(self):
        """Nothing is ever stored: the load is aborted, acknowledged and failed."""
        producer = self.producer()
        consumer = self.start(not self.we_produce, settings={**self.seed(), "load_timeout": 0.4})
        if consumer.kind == "vLLM":
            consumer.set(name="session.client._LOAD_TIMEOUT_S", value=0.4)
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=3, keys=keys("d", 2), blocks=span(0, 2))
        answer = self.fails(consumer, 3)
        if consumer.kind == "own":
            self.assertEqual((answer["outcomes"], answer["flags"]), (["TIMED_OUT"], [0]))
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    # --- symmetric ---

    @live
    def test_symmetric_hits_misses_pending_and_rounds(self):
        self.need("symmetric")
        producer, consumer = self.pair()
        producer.fill(blocks=span(0, 8), seed="s")
        producer.offer(keys=keys("s", 4), blocks=span(0, 4))
        producer.offer(keys=keys("s", 1, 4), blocks=[4], answers=["HIT_PENDING"] * 20 + ["HIT"])
        producer.offer(keys=keys("s", 1, 5), blocks=[5], answers=["RETRY"] * 20 + ["MISS"])
        consumer.request(name="c", params=cached_by(producer, "kv"))
        self.assertEqual(consumer.lookup(name="c", keys=keys("s", 7))["found"], ["HIT"] * 5 + ["MISS"] * 2)
        consumer.load(name="c", job=1, keys=keys("s", 5), blocks=span(30, 5))
        self.succeeds(consumer, 1)
        self.same_bytes(producer, span(0, 5), consumer, span(30, 5))
        # The second round knows nothing of the first.
        producer.offer(keys=keys("s", 2, 6), blocks=[6, 7])
        self.assertEqual(consumer.lookup(name="c", keys=keys("s", 4, 4))["found"], ["HIT", "MISS", "HIT", "HIT"])
        consumer.load(name="c", job=2, keys=keys("s", 2, 6), blocks=[50, 40])
        self.succeeds(consumer, 2)
        self.same_bytes(producer, [6, 7], consumer, [50, 40])
        for i in range(5):
            self.assertEqual(consumer.lookup(name="c", keys=keys("s", 2))["found"], ["HIT", "HIT"])
            consumer.load(name="c", job=10 + i, keys=keys("s", 2), blocks=[2 * i, 2 * i + 1])
            self.succeeds(consumer, 10 + i)
            self.same_bytes(producer, [0, 1], consumer, [2 * i, 2 * i + 1])
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    @live
    def test_symmetric_without_a_load_lets_go_of_the_pins(self):
        self.need("symmetric")
        producer, consumer = self.pair()
        producer.offer(keys=keys("n", 6), blocks=span(0, 6))
        consumer.request(name="c", params=cached_by(producer, "kv"))
        self.assertEqual(consumer.lookup(name="c", keys=keys("n", 6))["found"], ["HIT"] * 6)
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    @live
    def test_symmetric_in_both_directions_over_one_session(self):
        self.need("symmetric")
        one, other = self.pair()
        for peer, family in ((one, "one"), (other, "other")):
            peer.fill(blocks=span(0, 4), seed=family)
            peer.offer(keys=keys(family, 4), blocks=span(0, 4))
        for me, you, family in ((one, other, "other"), (other, one, "one")):
            me.request(name="r", params=cached_by(you, f"kv-{family}"))
            self.assertEqual(me.lookup(name="r", keys=keys(family, 4))["found"], ["HIT"] * 4)
            me.load(name="r", job=1, keys=keys(family, 4), blocks=span(20, 4))
        self.succeeds(one, 1), self.succeeds(other, 1)
        self.same_bytes(one, span(0, 4), other, span(20, 4))
        self.same_bytes(other, span(0, 4), one, span(20, 4))
        for peer in (one, other):
            self.assertEqual(len(peer.sessions()["sessions"]), 1)
            peer.finish(name="r")
        one.idle(), other.idle()

    @live
    def test_lookups_that_are_never_settled_are_misses(self):
        self.need("symmetric")
        producer = self.start(self.we_produce, settings={**self.seed(), "serve_timeout": 0.4})
        if producer.kind == "vLLM":
            producer.set(name="session.server._LOOKUP_PENDING_TIMEOUT_S", value=0.4)
        consumer = self.consumer()
        producer.offer(keys=keys("u", 1), blocks=[0], answers=["RETRY"])
        producer.offer(keys=keys("u", 1, 1), blocks=[1])
        consumer.request(name="c", params=cached_by(producer, "kv"))
        self.assertEqual(consumer.lookup(name="c", keys=keys("u", 2))["found"], ["MISS", "HIT"])
        consumer.finish(name="c")
        producer.idle(), consumer.idle()

    # --- death ---

    @live
    def test_producer_dies_and_comes_back(self):
        producer, consumer = self.pair()
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=1, keys=keys("x", 2), blocks=span(0, 2))
        peers.eventually("a session", lambda: consumer.id in producer.sessions()["sessions"])
        producer.kill()
        self.fails(consumer, 1)
        consumer.finish(name="c")
        again = self.start(self.we_produce, port=producer.options["port"], settings=self.seed())
        self.pulls_again(again, consumer)

    @live
    def test_consumer_dies_and_comes_back(self):
        producer, consumer = self.pair()
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=1, keys=keys("x", 2), blocks=span(0, 2))
        peers.eventually("a session", lambda: consumer.id in producer.sessions()["sessions"])
        consumer.kill()
        peers.eventually("the session is gone", lambda: consumer.id not in producer.sessions()["sessions"], 20)
        producer.idle()
        again = self.start(not self.we_produce, port=consumer.options["port"], settings=self.seed())
        self.pulls_again(producer, again)

    def pulls_again(self, producer, consumer):
        producer.fill(blocks=span(0, 4), seed="again")
        producer.request(name="again", params=serves("kv-again"))
        producer.store(name="again", job=80, keys=keys("again", 4), blocks=span(0, 4))
        consumer.request(name="again", params=prefilled_by(producer, "kv-again"))
        consumer.load(name="again", job=81, keys=keys("again", 4), blocks=span(8, 4))
        self.succeeds(consumer, 81, timeout=30)
        self.same_bytes(producer, span(0, 4), consumer, span(8, 4))

    # --- size ---

    @live
    def test_20000_keys_in_one_fetch(self):
        count = 20_000
        producer, consumer = self.pair(num_blocks=count, block_len=512)
        producer.fill(blocks=span(0, count), seed="k")
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("k", count), blocks=span(0, count))
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        backwards = list(range(count - 1, -1, -1))
        consumer.load(name="c", job=2, keys=keys("k", count), blocks=backwards)
        self.succeeds(consumer, 2, timeout=30)
        self.same_bytes(producer, span(0, count), consumer, backwards)

    @live
    def test_64_blocks_of_1_mib(self):
        self.moves_all(64, 1 << 20)

    @live
    def test_8192_blocks_of_16_kib(self):
        self.moves_all(8192, 16 << 10)

    def moves_all(self, count, block_len):
        producer, consumer = self.pair(num_blocks=count, block_len=block_len)
        producer.fill(blocks=span(0, count), seed="big")
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("big", count), blocks=span(0, count))
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        # Every block elsewhere than it was, in runs of four.
        moved = [(block // 4 + 1) * 4 % count + block % 4 for block in range(count)]
        consumer.load(name="c", job=2, keys=keys("big", count), blocks=moved)
        self.succeeds(consumer, 2, timeout=30)
        self.succeeds(producer, 1)
        self.same_bytes(producer, span(0, count), consumer, moved)

    # --- what does not fit ---

    def refused(self, producer, consumer, word: str):
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=1, keys=keys("r", 2), blocks=span(0, 2))
        answer = self.fails(consumer, 1)
        if consumer.kind == "own":
            self.assertEqual(answer["outcomes"], ["INCOMPATIBLE"], answer)
            self.assertIn(word, answer["details"][0])
        peers.eventually("no session", lambda: consumer.id not in producer.sessions()["sessions"])
        consumer.finish(name="c")

    @live
    def test_other_block_len_is_refused(self):
        self.refused(self.producer(block_len=8192), self.consumer(), "block_len")

    @live
    def test_other_model_is_refused(self):
        settings = {**self.seed(), "config_fingerprint": "0123456789abcdef"}
        producer = self.start(self.we_produce, settings=settings, model={"name": "other/model"})
        self.refused(producer, self.consumer(), "config_fingerprint")

    @live
    def test_other_hash_seed_is_refused(self):
        self.need("hash_seed")
        if self.we_produce:
            producer = self.start(True, settings={"hash_seed": "4711"})
        else:
            producer = self.start(False, environment={"PYTHONHASHSEED": "4711"})
        self.refused(producer, self.consumer(), "hash_seed")


class WeProduce(Cases, Live):
    we_produce = True


class WeConsume(Cases, Live):
    we_produce = False

    @live
    def test_abort_is_acknowledged_when_the_transfer_has_ended(self):
        """vLLM's transfers seem to go on: our load is not reported before they end."""
        producer, consumer = self.pair()
        producer.hold(on=True)
        producer.fill(blocks=span(0, 4), seed="h")
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("h", 4), blocks=span(0, 4))
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        consumer.load(name="c", job=2, keys=keys("h", 4), blocks=span(0, 4))
        self.assertEqual(consumer.results(jobs=[2], timeout=0.3)["results"], [None])
        consumer.finish(name="c")
        self.assertEqual(consumer.results(jobs=[2], timeout=0.5)["results"], [None], "vLLM may still write")
        producer.hold(on=False)
        answer = self.fails(consumer, 2)
        self.assertEqual((answer["outcomes"], answer["flags"]), (["ABORTED"], [0]))

    def test_a_frozen_vllm_is_bounded_and_redialled(self):
        """As one that has gone deaf: it lives, and neither hears nor says anything."""
        producer = self.producer()
        settings = {**self.seed(), "load_timeout": 0.5, "abort_ack_timeout": 0.5}
        consumer = self.start(True, settings=settings)
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        ready = 3
        peers.eventually("a ready session", lambda: consumer.peers()["peers"][0]["state"] == ready)
        producer.process.send_signal(signal.SIGSTOP)
        try:
            consumer.load(name="c", job=1, keys=keys("z", 2), blocks=span(0, 2))
            self.fails(consumer, 1)
            consumer.finish(name="c")
            peers.eventually("the session is given up", lambda: not consumer.sessions()["sessions"], 20)
            consumer.request(name="d", params=prefilled_by(producer, "kv-d"))
            consumer.load(name="d", job=2, keys=keys("z", 2), blocks=span(0, 2))
            self.fails(consumer, 2)
            consumer.finish(name="d")
        finally:
            producer.process.send_signal(signal.SIGCONT)
        if producer.is_deaf():
            self.skipTest("this vLLM has really gone deaf")
        producer.fill(blocks=span(0, 4), seed="after")
        for attempt in range(20):
            producer.request(name=f"p{attempt}", params=serves(f"after{attempt}"))
            producer.store(name=f"p{attempt}", job=10 + attempt, keys=keys("after", 4), blocks=span(0, 4))
            consumer.request(name=f"c{attempt}", params=prefilled_by(producer, f"after{attempt}"))
            consumer.load(name=f"c{attempt}", job=10 + attempt, keys=keys("after", 4), blocks=span(8, 4))
            if consumer.results(jobs=[10 + attempt], timeout=SOON)["results"] == [True]:
                break
            consumer.finish(name=f"c{attempt}")
            producer.finish(name=f"p{attempt}")
        self.same_bytes(producer, span(0, 4), consumer, span(8, 4))

    @live
    def test_a_load_without_an_acknowledgement_is_flagged(self):
        producer = self.producer()
        settings = {**self.seed(), "load_timeout": 0.3, "abort_ack_timeout": 0.4}
        consumer = self.start(True, settings=settings)
        producer.hold(on=True)
        producer.request(name="p", params=serves("kv"))
        producer.store(name="p", job=1, keys=keys("h", 4), blocks=span(0, 4))
        consumer.request(name="c", params=prefilled_by(producer, "kv"))
        ready = 3
        peers.eventually("a ready session", lambda: consumer.peers()["peers"][0]["state"] == ready)
        consumer.load(name="c", job=2, keys=keys("h", 4), blocks=span(0, 4))
        answer = self.fails(consumer, 2)
        may_still_be_written = 2
        self.assertEqual((answer["outcomes"], answer["flags"]), (["TIMED_OUT"], [may_still_be_written]))
        producer.hold(on=False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
