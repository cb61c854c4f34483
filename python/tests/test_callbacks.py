from __future__ import annotations

import gc
import logging
import selectors
import threading
import unittest
import weakref
from contextlib import contextmanager
from typing import Callable, Iterator, Optional, Sequence

import p2pkv
from p2pkv import LookupState, StoreJob

from .support import BLOCK_LEN, WAIT_S, blocks_of, make_keys, symmetric, until

BLOCKS = 8


class Cache(p2pkv.ServeOps):
    """An engine's cache: key i lies in block i; keeps a diary of the calls."""

    def __init__(self, keys: list[bytes]):
        self.blocks = {key: block for block, key in enumerate(keys)}
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.asked_by = ("", "")
        self.next_job = 100

    def new_request(self, serve_id: int, kv_request_id: str, peer_id: str) -> None:
        self.calls.append("new_request")
        self.asked_by = (kv_request_id, peer_id)

    def lookup(self, serve_id: int, keys: list[bytes]) -> Sequence[LookupState]:
        self.calls.append("lookup")
        self.threads.add(threading.get_ident())
        return [LookupState.HIT if key in self.blocks else LookupState.MISS for key in keys]

    def create_store_job(self, serve_id: int, keys: list[bytes]) -> Optional[StoreJob]:
        self.calls.append("create_store_job")
        self.next_job += 1
        return StoreJob(self.next_job, [self.blocks[key] for key in keys])

    def request_finished(self, serve_id: int) -> None:
        self.calls.append("request_finished")


class BrokenLookup(Cache):
    def lookup(self, serve_id: int, keys: list[bytes]) -> Sequence[LookupState]:
        raise RuntimeError("the cache is on fire")


class ShortAnswer(Cache):
    def lookup(self, serve_id: int, keys: list[bytes]) -> Sequence[LookupState]:
        return [LookupState.HIT]


class NothingPinned(Cache):
    def create_store_job(self, serve_id: int, keys: list[bytes]) -> Optional[StoreJob]:
        return None


class ServeOpsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.keys = make_keys(BLOCKS)
        self.pool = bytearray(blocks_of(self.keys))
        self.region = bytearray(BLOCKS * BLOCK_LEN)

    @contextmanager
    def pair(self) -> Iterator[tuple[p2pkv.Tier, p2pkv.Tier]]:
        with p2pkv.Tier(self.pool, BLOCK_LEN) as producer, p2pkv.Tier(self.region, BLOCK_LEN) as consumer:
            yield producer, consumer

    def test_the_progress_thread_asks_the_engine_and_its_blocks_move(self) -> None:
        cache = Cache(self.keys[:6])
        with self.pair() as (producer, consumer):
            producer.set_serve_ops(cache, on_progress_thread=True)
            with consumer.request(symmetric(producer, "from-ops")) as request:
                states = request.lookup_wait(self.keys, WAIT_S)
                self.assertEqual(states, [LookupState.HIT] * 6 + [LookupState.MISS] * 2)
                request.submit_load(1, self.keys[:6], range(6))
                consumer.wait(WAIT_S)[0].check()
            (pins,) = producer.wait(WAIT_S)
            self.assertEqual((pins.check().job_id, pins.kind), (101, p2pkv.JobKind.STORE))
            until(lambda: "request_finished" in cache.calls, "the context is closed")
            self.assertEqual(cache.asked_by, ("from-ops", consumer.local_id))
        self.assertEqual(self.region[: 6 * BLOCK_LEN], self.pool[: 6 * BLOCK_LEN])
        self.assertEqual(cache.calls, ["new_request", "lookup", "create_store_job", "request_finished"])
        self.assertNotIn(threading.get_ident(), cache.threads)

    def test_serve_asks_the_engine_on_the_calling_thread(self) -> None:
        cache = Cache(self.keys)
        with self.pair() as (producer, consumer):
            producer.set_serve_ops(cache)
            with consumer.request(symmetric(producer)) as request:
                states: list[LookupState] = []

                def answered() -> bool:
                    states[:] = request.lookup(self.keys)
                    consumer.flush_lookups()
                    producer.serve()
                    return LookupState.RETRY not in states

                until(answered, "the lookup is answered")
        self.assertEqual(states, [LookupState.HIT] * BLOCKS)
        self.assertEqual(cache.threads, {threading.get_ident()})

    def test_the_file_descriptor_tells_that_a_lookup_waits_for_serve(self) -> None:
        with self.pair() as (producer, consumer), selectors.DefaultSelector() as selector:
            producer.set_serve_ops(Cache(self.keys))
            selector.register(producer, selectors.EVENT_READ)
            self.assertEqual(selector.select(0), [])
            with consumer.request(symmetric(producer)) as request:
                request.lookup(self.keys)
                consumer.flush_lookups()
                self.assertTrue(selector.select(WAIT_S))
                producer.serve()
                self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.HIT] * BLOCKS)
                self.assertEqual(selector.select(0), [], "quiet again when the engine has answered")

    def test_an_op_that_would_wait_for_itself_is_refused(self) -> None:
        class Waiting(Cache):
            refused = 0

            def lookup(self, serve_id: int, keys: list[bytes]) -> Sequence[LookupState]:
                for call in (producer.wait, producer.drain, lambda: producer.set_serve_ops(None)):
                    try:
                        call()
                    except p2pkv.Unsupported:
                        self.refused += 1
                producer.serve()
                self.refused += len(producer.poll())
                return super().lookup(serve_id, keys)

        for on_progress_thread in (True, False):
            with self.subTest(on_progress_thread=on_progress_thread), self.pair() as (producer, consumer):
                ops = Waiting(self.keys)
                producer.set_serve_ops(ops, on_progress_thread=on_progress_thread)
                with consumer.request(symmetric(producer)) as request:

                    def answered() -> bool:
                        producer.serve()
                        return LookupState.RETRY not in request.lookup_wait(self.keys, 0.01)

                    until(answered, "the lookup is answered")
                self.assertEqual(ops.refused, 3)

    def test_published_blocks_are_answered_without_the_engine(self) -> None:
        cache = Cache([])
        with self.pair() as (producer, consumer):
            producer.publish(self.keys, range(BLOCKS))
            producer.set_serve_ops(cache, on_progress_thread=True)
            with consumer.request(symmetric(producer)) as request:
                self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.HIT] * BLOCKS)
        self.assertNotIn("lookup", cache.calls)

    def test_a_broken_engine_is_logged_and_peers_see_misses(self) -> None:
        for broken, said in (
            (BrokenLookup, "on fire"),
            (ShortAnswer, "asked for 8 keys and gave 1"),
            (NothingPinned, ""),
        ):
            with self.subTest(broken.__name__), self.pair() as (producer, consumer):
                producer.set_serve_ops(broken(self.keys), on_progress_thread=True)
                with consumer.request(symmetric(producer)) as request:
                    if said:
                        with self.assertLogs("p2pkv", logging.ERROR) as logged:
                            states = request.lookup_wait(self.keys, WAIT_S)
                        self.assertIn(said, "\n".join(logged.output))
                    else:
                        states = request.lookup_wait(self.keys, WAIT_S)
                    self.assertEqual(states, [LookupState.MISS] * BLOCKS)

    def test_ops_are_let_go_when_cleared_replaced_or_closed(self) -> None:
        with self.pair() as (producer, _):
            seen: list[weakref.ref[Cache]] = []
            ends: tuple[Callable[[], None], ...] = (
                lambda: producer.set_serve_ops(None),
                lambda: producer.set_serve_ops(Cache([])),
                producer.close,
            )
            for end in ends:
                cache = Cache(self.keys)
                seen.append(weakref.ref(cache))
                producer.set_serve_ops(cache, on_progress_thread=True)
                del cache
                gc.collect()
                self.assertIsNotNone(seen[-1](), "kept alive while set")
                end()
                until(lambda: gc.collect() >= 0 and seen[-1]() is None, "the ops are let go")

    def test_a_callback_cannot_close_its_tier(self) -> None:
        class Closing(Cache):
            def lookup(self, serve_id: int, keys: list[bytes]) -> Sequence[LookupState]:
                producer.close()
                return super().lookup(serve_id, keys)

        with self.pair() as (producer, consumer):
            producer.set_serve_ops(Closing(self.keys), on_progress_thread=True)
            with consumer.request(symmetric(producer)) as request, self.assertLogs("p2pkv", logging.ERROR) as logged:
                self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.MISS] * BLOCKS)
            self.assertIn("called from a callback", "\n".join(logged.output))


class LogTest(unittest.TestCase):
    def test_the_library_logs_to_a_logger_until_told_otherwise(self) -> None:
        logger = logging.getLogger("p2pkv.library")
        logger.setLevel(logging.DEBUG)
        with self.assertLogs(logger, logging.DEBUG) as logged:
            p2pkv.log_to(logger, p2pkv.LogLevel.DEBUG)
            p2pkv.Tier(bytearray(BLOCK_LEN), BLOCK_LEN).close()
            p2pkv.log_to(None)
            lines = len(logged.records)
            self.assertGreater(lines, 0)
            p2pkv.Tier(bytearray(BLOCK_LEN), BLOCK_LEN).close()
            self.assertEqual(len(logged.records), lines)

    def test_a_callable_gets_level_module_and_message(self) -> None:
        lines: list[tuple[p2pkv.LogLevel, str, str]] = []
        p2pkv.log_to(lambda *line: lines.append(line), p2pkv.LogLevel.TRACE)
        p2pkv.Tier(bytearray(BLOCK_LEN), BLOCK_LEN).close()
        p2pkv.log_to(None)
        self.assertTrue(all(isinstance(level, p2pkv.LogLevel) and module and text for level, module, text in lines))
        self.assertTrue(lines)


if __name__ == "__main__":
    unittest.main()
