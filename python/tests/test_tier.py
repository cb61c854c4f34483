from __future__ import annotations

import asyncio
import gc
import mmap
import os
import selectors
import socket
import threading
import time
import unittest
import weakref
from typing import Any, Callable

import p2pkv
from p2pkv import LookupState, Outcome, OutcomeClass

from .support import (
    BLOCK_LEN,
    WAIT_S,
    block_bytes,
    blocks_of,
    decoder,
    make_keys,
    prefiller,
    progressing,
    symmetric,
    until,
)

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

BLOCKS = 32


def open_tier(**config: Any) -> p2pkv.Tier:
    region = config.pop("region", None)
    return p2pkv.Tier(bytearray(BLOCKS * BLOCK_LEN) if region is None else region, BLOCK_LEN, **config)


class ExchangeTest(unittest.TestCase):
    """Two tiers of one process exchange blocks."""

    def setUp(self) -> None:
        self.keys = make_keys(BLOCKS)

    def pull_published(self, consumer_region: Any, **config: Any) -> p2pkv.JobResult:
        """Half of the keys are published; exactly these must be hits and arrive, in reversed order of blocks."""
        held = self.keys[: BLOCKS // 2]
        pool = bytearray(blocks_of(held) + bytes(BLOCKS // 2 * BLOCK_LEN))
        with open_tier(region=pool, **config) as producer, open_tier(region=consumer_region, **config) as consumer:
            producer.publish(held, range(len(held)))
            with progressing(producer), consumer.request(symmetric(producer)) as request:
                states = request.lookup_wait(self.keys, timeout=WAIT_S)
                self.assertEqual(states, [LookupState.HIT] * len(held) + [LookupState.MISS] * (BLOCKS - len(held)))
                request.submit_load(77, held, list(reversed(range(len(held)))))
                (result,) = consumer.wait(WAIT_S)
        return result.check()

    def test_published_blocks_are_hits_and_arrive(self) -> None:
        for progress in p2pkv.Progress:
            with self.subTest(progress):
                region = bytearray(BLOCKS * BLOCK_LEN)
                result = self.pull_published(region, progress=progress)
                expected = blocks_of(list(reversed(self.keys[: BLOCKS // 2])))
                self.assertEqual(region[: len(expected)], expected)
                self.assertEqual(region[len(expected) :], bytes(BLOCKS // 2 * BLOCK_LEN))
                self.assertEqual((result.job_id, result.kind, result.flags), (77, p2pkv.JobKind.LOAD, 0))
                self.assertEqual((result.outcome, result.outcome_class), (Outcome.DONE, OutcomeClass.NONE))
                self.assertEqual((result.bytes, result.detail), (len(expected), ""))
                self.assertGreater(result.nanoseconds, 0)

    def test_blocks_arrive_in_memory_of_the_library(self) -> None:
        region = p2pkv.Region.alloc(BLOCKS * BLOCK_LEN)
        self.pull_published(region)
        self.assertEqual(bytes(region.view[:BLOCK_LEN]), block_bytes(self.keys[BLOCKS // 2 - 1]))

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_blocks_arrive_in_a_numpy_array(self) -> None:
        pool = numpy.zeros((BLOCKS, BLOCK_LEN // 4), dtype=numpy.float32)
        self.pull_published(pool)
        self.assertEqual(pool[0].tobytes(), block_bytes(self.keys[BLOCKS // 2 - 1]))

    def prefill_decode(self, order: str) -> None:
        pool = bytearray(blocks_of(self.keys))
        region = bytearray(BLOCKS * BLOCK_LEN)
        with open_tier(region=pool) as producer, open_tier(region=region) as consumer:
            with producer.request(prefiller()) as stores, consumer.request(decoder(*producer.address)) as loads:
                self.assertEqual(stores.offload_policy, p2pkv.OffloadPolicy.REQUEST_LEVEL)
                self.assertEqual(loads.offload_policy, p2pkv.OffloadPolicy.CHUNK_LEVEL)
                if order == "decoder first":
                    loads.submit_load(1, self.keys, range(BLOCKS))
                    until(lambda: bool(producer.peers()), "the producer knows the decoder")
                for first in range(0, BLOCKS, 8):
                    stores.submit_store(first, self.keys[first : first + 8], range(first, first + 8))
                if order == "prefiller first":
                    loads.submit_load(1, self.keys, range(BLOCKS))
                (loaded,) = consumer.wait(WAIT_S)
                stored: list[p2pkv.JobResult] = []
                while len(stored) < BLOCKS // 8:
                    more = producer.wait(WAIT_S)
                    self.assertTrue(more, "every store ends")
                    stored += more
        loaded.check()
        self.assertEqual(sorted(result.check().job_id for result in stored), [0, 8, 16, 24])
        self.assertEqual({result.kind for result in stored}, {p2pkv.JobKind.STORE})
        self.assertEqual(region, pool)

    def test_stores_meet_a_load_that_came_before(self) -> None:
        self.prefill_decode("decoder first")

    def test_stores_wait_for_a_load_that_comes_later(self) -> None:
        self.prefill_decode("prefiller first")

    def test_rounds_of_one_request_follow_one_another(self) -> None:
        region = bytearray(BLOCKS * BLOCK_LEN)
        with open_tier(region=bytearray(blocks_of(self.keys))) as producer, open_tier(region=region) as consumer:
            producer.publish(self.keys, range(BLOCKS))
            with consumer.request(symmetric(producer)) as request:
                for first in range(0, BLOCKS, 8):
                    round_keys = p2pkv.Keys(self.keys[first : first + 8])
                    self.assertEqual(request.lookup_wait(round_keys, WAIT_S), [LookupState.HIT] * 8)
                    request.submit_load(first, round_keys, range(first, first + 8))
                done: set[int] = set()
                while len(done) < BLOCKS // 8:
                    done |= {result.check().job_id for result in consumer.wait(WAIT_S)}
        self.assertEqual(region, blocks_of(self.keys))

    def test_an_event_loop_sees_results_on_the_file_descriptor(self) -> None:
        with open_tier(region=bytearray(blocks_of(self.keys))) as producer, open_tier() as consumer:
            producer.publish(self.keys, range(BLOCKS))
            with consumer.request(symmetric(producer)) as request, selectors.DefaultSelector() as selector:
                selector.register(consumer, selectors.EVENT_READ)
                self.assertEqual(selector.select(0), [])
                request.lookup_wait(self.keys, WAIT_S)
                request.submit_load(1, self.keys, range(BLOCKS))
                self.assertTrue(selector.select(WAIT_S))
                self.assertEqual([result.check().job_id for result in consumer.poll()], [1])
                self.assertEqual(selector.select(0), [], "quiet again when all results are taken")

    def test_the_file_descriptor_alone_drives_a_tier_without_a_thread(self) -> None:
        caller = p2pkv.Progress.CALLER
        with open_tier(region=bytearray(blocks_of(self.keys)), progress=caller) as producer:
            producer.publish(self.keys, range(BLOCKS))
            with open_tier(progress=caller) as consumer, selectors.DefaultSelector() as selector:
                selector.register(producer, selectors.EVENT_READ, producer)
                selector.register(consumer, selectors.EVENT_READ, consumer)
                with consumer.request(symmetric(producer)) as request:
                    results: list[p2pkv.JobResult] = []

                    def turn() -> None:
                        ready = selector.select(WAIT_S)
                        self.assertTrue(ready, "the descriptor tells of everything that is to be done")
                        for key, _ in ready:
                            results.extend(key.data.poll())

                    while LookupState.RETRY in request.lookup(self.keys):
                        consumer.flush_lookups()
                        turn()
                    request.submit_load(1, self.keys, range(BLOCKS))
                    while not results:
                        turn()
                results[0].check()

    def test_asyncio_can_wait_for_results(self) -> None:
        async def load(consumer: p2pkv.Tier, request: p2pkv.Request) -> list[p2pkv.JobResult]:
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(consumer.fileno(), readable.set)
            request.submit_load(1, self.keys, range(BLOCKS))
            await asyncio.wait_for(readable.wait(), WAIT_S)
            loop.remove_reader(consumer.fileno())
            return consumer.poll()

        with open_tier(region=bytearray(blocks_of(self.keys))) as producer, open_tier() as consumer:
            producer.publish(self.keys, range(BLOCKS))
            with consumer.request(symmetric(producer)) as request:
                request.lookup_wait(self.keys, WAIT_S)
                (result,) = asyncio.run(load(consumer, request))
        result.check()

    def test_peers_and_statistics_tell_what_moved(self) -> None:
        with open_tier(region=bytearray(blocks_of(self.keys))) as producer, open_tier() as consumer:
            producer.publish(self.keys, range(BLOCKS))
            with consumer.request(symmetric(producer)) as request:
                request.lookup_wait(self.keys, WAIT_S)
                request.submit_load(1, self.keys, range(BLOCKS))
                consumer.wait(WAIT_S)[0].check()
                (peer,) = consumer.peers()
                self.assertEqual(
                    (peer.peer_id, peer.state, peer.transport), (producer.local_id, p2pkv.PeerState.READY, "same_host")
                )
                self.assertEqual(peer.bytes_in, BLOCKS * BLOCK_LEN)
                stats = consumer.stats()
                self.assertEqual((stats.peers, stats.requests, stats.jobs_done), (1, 1, 1))
                self.assertEqual((stats.bytes_in, stats.keys_hit), (BLOCKS * BLOCK_LEN, BLOCKS))
            self.assertEqual(producer.stats().keys_published, BLOCKS)
            self.assertTrue(producer.drain(WAIT_S))
            self.assertFalse(consumer.has_pending_work)

    def test_unpublished_keys_are_misses(self) -> None:
        with open_tier() as producer, open_tier() as consumer:
            producer.publish(self.keys[:2], [0, 1])
            states = producer.unpublish([self.keys[0], self.keys[5]])
            self.assertEqual(states, [p2pkv.UnpublishState.REMOVED, p2pkv.UnpublishState.NOT_FOUND])
            with consumer.request(symmetric(producer)) as request:
                self.assertEqual(request.lookup_wait(self.keys[:2], WAIT_S), [LookupState.MISS, LookupState.HIT])

    def test_unpublish_takes_all_keys_back_or_none(self) -> None:
        removed, busy = p2pkv.UnpublishState.REMOVED, p2pkv.UnpublishState.BUSY
        with open_tier() as producer, open_tier() as consumer:
            producer.publish(self.keys[:2], [0, 1])
            with consumer.request(symmetric(producer)) as request:
                self.assertEqual(request.lookup_wait(self.keys[:1], WAIT_S), [LookupState.HIT])
                self.assertEqual(producer.unpublish(self.keys[:2]), [busy, removed])
                self.assertEqual(producer.stats().keys_published, 2, "the free one is published as before")
            until(lambda: producer.unpublish(self.keys[:2]) == [removed, removed], "finish gives the pin back")
            self.assertEqual(producer.stats().keys_published, 0)

    def test_a_lookup_that_is_not_answered_in_time_can_be_waited_for_again(self) -> None:
        class Everything(p2pkv.ServeOps):
            def lookup(self, serve_id: int, keys: list[bytes]) -> list[LookupState]:
                return [LookupState.HIT] * len(keys)

            def create_store_job(self, serve_id: int, keys: list[bytes]) -> p2pkv.StoreJob:
                return p2pkv.StoreJob(serve_id, range(len(keys)))

        for progress in p2pkv.Progress:
            with self.subTest(progress), open_tier() as producer, open_tier(progress=progress) as consumer:
                producer.set_serve_ops(Everything())
                with consumer.request(symmetric(producer)) as request:
                    began = time.monotonic()
                    self.assertEqual(request.lookup_wait(self.keys[:2], 0.25), [LookupState.RETRY] * 2)
                    self.assertLess(time.monotonic() - began, WAIT_S / 2)
                    self.assertEqual(request.lookup_wait(self.keys[:2], 0), [LookupState.RETRY] * 2)
                    until(lambda: producer.has_pending_work, "the lookup has come")
                    producer.serve()
                    self.assertEqual(request.lookup_wait(self.keys[:2], WAIT_S), [LookupState.HIT] * 2)


class FailureTest(unittest.TestCase):
    def setUp(self) -> None:
        self.keys = make_keys(4)

    def failed_load(self, consumer: p2pkv.Tier, host: str, port: int) -> p2pkv.JobResult:
        with consumer.request(decoder(host, port)) as request:
            request.submit_load(1, self.keys, range(4))
            (result,) = consumer.wait(WAIT_S)
        return result

    def test_a_load_from_nobody_ends_in_no_peer(self) -> None:
        with socket.socket() as taken:  # bound but not listening: refuses connections
            taken.bind(("127.0.0.1", 0))
            with open_tier(handshake_timeout=0.5) as consumer:
                result = self.failed_load(consumer, "127.0.0.1", taken.getsockname()[1])
        self.assertEqual((result.outcome, result.outcome_class), (Outcome.NO_PEER, OutcomeClass.FIX_CONFIGURATION))
        with self.assertRaisesRegex(p2pkv.JobFailed, "load 1: NO_PEER .FIX_CONFIGURATION.: .*127.0.0.1"):
            result.check()

    def test_a_request_says_why_its_lookups_are_misses(self) -> None:
        with open_tier(model_config={"model": "a"}) as producer, open_tier(model_config={"model": "b"}) as other:
            with open_tier() as fitting, fitting.request() as roleless:
                self.assertEqual(roleless.outcome, (Outcome.DONE, ""))
                with fitting.request(symmetric(producer)) as request:
                    self.assertEqual(request.outcome, (Outcome.DONE, ""))
                    self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.MISS] * 4)
                    self.assertEqual(request.outcome, (Outcome.DONE, ""))
                    self.assertTrue(request.outcome.ok)
            with other.request(symmetric(producer)) as request:
                self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.MISS] * 4)
                self.assertEqual(request.outcome.outcome, Outcome.INCOMPATIBLE)
                self.assertRegex(request.outcome.detail, f"{producer.local_id}.*config_fingerprint")

    def test_the_lookup_timeout_of_a_request_makes_misses(self) -> None:
        with open_tier() as producer, open_tier() as consumer:
            producer.set_serve_ops(p2pkv.ServeOps())  # and serve is never called
            with consumer.request(symmetric(producer), lookup_timeout=0.3) as request:
                self.assertEqual(request.lookup_wait(self.keys), [LookupState.MISS] * 4)
                self.assertEqual(request.outcome.outcome, Outcome.TIMED_OUT)
                self.assertIn("lookup", request.outcome.detail)
            self.assertEqual(consumer.stats().sessions_lost, 0)

    def test_jobs_can_have_deadlines_of_their_own(self) -> None:
        decoding = {"remote_decoder": {"kv_request_id": "nobody comes"}}
        with open_tier() as tier, tier.request(decoding, store_timeout=60) as request:
            request.set_timeouts(store=0.2)
            request.submit_store(1, self.keys, range(4))
            (result,) = tier.wait(WAIT_S)
            self.assertEqual(result.outcome, Outcome.NOT_FETCHED)
            self.assertLess(result.nanoseconds, 5e9)
            with self.assertRaises(p2pkv.InvalidArgument):
                request.set_timeouts(load=0)

    def test_peers_of_another_model_are_incompatible(self) -> None:
        with open_tier(model_config={"model": "a"}) as producer, open_tier(model_config={"model": "b"}) as consumer:
            result = self.failed_load(consumer, *producer.address)
        self.assertEqual((result.outcome, result.outcome_class), (Outcome.INCOMPATIBLE, OutcomeClass.FIX_CONFIGURATION))
        self.assertIn("fingerprint", result.detail)

    def test_a_load_of_a_key_that_is_no_hit_is_refused(self) -> None:
        with open_tier() as producer, open_tier() as consumer:
            with consumer.request(symmetric(producer)) as request:
                self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.MISS] * 4)
                with self.assertRaises(p2pkv.NotAHit) as caught:
                    request.submit_load(1, self.keys, range(4))
        self.assertEqual(caught.exception.status, p2pkv.Status.NOT_A_HIT)
        self.assertTrue(caught.exception.detail)

    def test_bad_arguments_are_refused_with_the_reason(self) -> None:
        with open_tier() as tier, tier.request() as request:
            cases: list[tuple[type[p2pkv.P2PError], Callable[[], object]]] = [
                (p2pkv.InvalidParams, lambda: tier.request("not json")),
                (p2pkv.InvalidParams, lambda: tier.request({"remote_kv_source": {"kv_request_id": "r"}})),
                (p2pkv.WrongRole, lambda: request.submit_load(1, self.keys, range(4))),
                (p2pkv.InvalidArgument, lambda: tier.publish(self.keys, [0, 1, 2, BLOCKS])),
                (p2pkv.InvalidArgument, lambda: tier.publish(self.keys, [0])),
                (p2pkv.InvalidArgument, lambda: open_tier(model_config={"a": 1}, config_fingerprint="0" * 16)),
                (p2pkv.InvalidArgument, lambda: open_tier(config_fingerprint="xyz")),
                (p2pkv.InvalidArgument, lambda: open_tier(port=-1)),
                (p2pkv.InvalidArgument, lambda: open_tier(port=70000)),
                (p2pkv.InvalidArgument, lambda: open_tier(load_timeout=0)),
                (p2pkv.InvalidArgument, lambda: open_tier(num_blocks=BLOCKS + 1)),
                (p2pkv.InvalidArgument, lambda: p2pkv.Tier(bytearray(100), block_len=64)),
                (p2pkv.InvalidArgument, lambda: open_tier(transport=9)),
                (p2pkv.AddressInvalid, lambda: open_tier(host="192.0.2.1")),
                (p2pkv.AddressInUse, lambda: open_tier(port=tier.address[1])),
            ]
            for number, (expected, call) in enumerate(cases):
                with self.subTest(number):
                    with self.assertRaises(expected) as caught:
                        call()
                    self.assertTrue(caught.exception.detail)

    def test_a_published_key_cannot_move(self) -> None:
        with open_tier() as tier:
            tier.publish(self.keys, range(4))
            with self.assertRaises(p2pkv.AlreadyExists):
                tier.publish(self.keys[:1], [9])

    def test_metrics_name_the_tier_and_end(self) -> None:
        with open_tier() as tier:
            tier.publish(self.keys[:4], range(4))
            lines = tier.metrics_text().splitlines()
            host, port = tier.address
            self.assertIn(f'p2pkv_keys_published{{tier="{host}:{port}"}} 4', lines)
            self.assertEqual(lines[-1], "# EOF")

    def test_tiers_of_one_host_copy_memory_unless_told_not_to(self) -> None:
        ways = [
            (p2pkv.SameHost.AUTO, p2pkv.Region.alloc(4 * BLOCK_LEN), "same_host"),
            (p2pkv.SameHost.OFF, bytearray(4 * BLOCK_LEN), "tcp"),
        ]
        for same_host, region, expected in ways:
            with self.subTest(same_host):
                transport = p2pkv.Transport.TCP
                with p2pkv.Tier(region, BLOCK_LEN, same_host=same_host, transport=transport) as a, p2pkv.Tier(
                    bytearray(4 * BLOCK_LEN), BLOCK_LEN, same_host=same_host, transport=transport
                ) as b:
                    a.publish(self.keys[:4], range(4))
                    host, port = a.address
                    params = {"remote_prefiller": {"kv_request_id": "r", "remote_host": host, "remote_port": port}}
                    with b.request(params) as request:
                        request.submit_load(1, self.keys[:4], range(4))
                        b.wait(timeout=WAIT_S)[0].check()
                    self.assertEqual([peer.transport for peer in a.peers()], [expected])

    def test_a_region_of_ones_own_memfd_is_mapped_by_peers(self) -> None:
        fd = os.memfd_create("kv", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, 8 * BLOCK_LEN + mmap.PAGESIZE)
            pool = mmap.mmap(fd, 8 * BLOCK_LEN, offset=mmap.PAGESIZE)
            with p2pkv.Tier(pool, BLOCK_LEN, region_fd=fd, region_offset=mmap.PAGESIZE):
                with self.assertRaises(OSError):
                    os.ftruncate(fd, 0)
            with self.assertRaises(p2pkv.InvalidArgument):
                p2pkv.Tier(pool, BLOCK_LEN, region_fd=fd, region_offset=0)
        finally:
            os.close(fd)


class LifeTest(unittest.TestCase):
    def test_waiting_without_results_ends_in_time_with_nothing(self) -> None:
        with open_tier() as tier:
            began = time.monotonic()
            self.assertEqual(tier.wait(0.25), [])
            self.assertGreaterEqual(time.monotonic() - began, 0.25)
            self.assertEqual(tier.wait(0), [])
            self.assertEqual(tier.poll(), [])

    def test_a_closed_tier_refuses_calls_and_closes_again(self) -> None:
        tier = open_tier()
        request = tier.request()
        tier.close()
        tier.close()
        self.assertTrue(tier.closed)
        for call in (tier.poll, tier.fileno, tier.stats, tier.request, lambda: request.lookup(make_keys(1))):
            with self.assertRaises(p2pkv.ShutDown):
                call()
        request.finish()
        self.assertIn("closed", repr(tier))

    def test_a_finished_request_refuses_calls_and_finishes_again(self) -> None:
        with open_tier() as tier:
            request = tier.request()
            request.finish()
            request.finish()
            with self.assertRaises(p2pkv.ShutDown):
                request.lookup(make_keys(1))
            self.assertEqual(tier.stats().requests, 0)

    def test_closing_ends_a_wait_on_another_thread(self) -> None:
        tier = open_tier()
        ended = threading.Event()

        def wait() -> None:
            try:
                tier.wait()
            except p2pkv.ShutDown:
                ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        tier.close()
        thread.join(WAIT_S)
        self.assertTrue(ended.is_set())

    def test_a_forgotten_tier_closes_and_lets_its_region_go(self) -> None:
        region = bytearray(BLOCKS * BLOCK_LEN)
        tier = open_tier(region=region)
        port = tier.address[1]
        alive = weakref.ref(tier)
        del tier
        gc.collect()
        self.assertIsNone(alive())
        region.append(0)
        open_tier(port=port).close()

    def test_a_child_after_fork_is_told_so_and_leaves_the_tier_alone(self) -> None:
        with open_tier() as tier:
            child = os.fork()
            if child == 0:
                refused = False
                try:
                    tier.poll()
                except p2pkv.WrongProcess:
                    refused = True
                tier.close()
                os._exit(0 if refused else 1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(tier.poll(), [])

    def test_the_library_names_itself(self) -> None:
        self.assertRegex(p2pkv.version(), r"^\d+\.\d+\.\d+")
        self.assertIn(p2pkv.Feature.TCP, p2pkv.features())


if __name__ == "__main__":
    unittest.main()
