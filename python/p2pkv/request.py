"""One request of the engine, in its roles toward peers."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Optional, Sequence

from ._deadline import Deadline, configured_ms
from ._ffi import check, copied_text, library
from .enums import LookupState, OffloadPolicy, Outcome
from .errors import ShutDown
from .keys import KeysLike, block_indexes_for, packed
from .records import RequestOutcome

if TYPE_CHECKING:
    from ._handle import TierHandle
    from .tier import Tier


class Request:
    """Made by ``Tier.request``. Use it from one thread at a time, and ``finish`` it (or leave its ``with`` block)
    when the engine's request is over: live loads are then aborted, and each still gets its one result. Requests that
    are open when the tier is closed are finished by that.
    """

    __slots__ = ("_tier", "_handle", "_pointer")

    def __init__(self, tier: Tier, handle: TierHandle, pointer: int):
        self._tier = tier
        self._handle = handle
        self._pointer: Optional[int] = pointer

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _live(self) -> int:
        if self._pointer is None:
            raise ShutDown("the request is finished")
        return self._pointer

    @property
    def offload_policy(self) -> OffloadPolicy:
        """Which blocks of this request to store: only new ones, or all since a consumer waits for each."""
        policy = ctypes.c_uint32()
        with self._handle:
            check(library().p2p_request_offload_policy(self._live(), ctypes.byref(policy)))
        return OffloadPolicy(policy.value)

    def lookup(self, keys: KeysLike) -> list[LookupState]:
        """What the peer has, one state for each key. Never waits: RETRY means that the answer is not here yet. The
        question goes out with ``Tier.flush_lookups``."""
        asked = packed(keys)
        states = (ctypes.c_uint32 * len(asked))()
        with self._handle:
            check(library().p2p_lookup(self._live(), ctypes.byref(asked.struct), states))
        return [LookupState(state) for state in states]

    def lookup_wait(self, keys: KeysLike, timeout: Optional[float] = None) -> list[LookupState]:
        """``lookup``, flush, and wait until no key is at RETRY. For scripts: an engine asks again in its next step.

        ``timeout`` in seconds; keys without an answer by then are at RETRY. ``None``: the request's lookup timeout
        ends the wait, and makes them MISS.
        """
        asked, deadline = packed(keys), Deadline(timeout)
        states = self.lookup(asked)
        while LookupState.RETRY in states:
            with self._handle:
                check(library().p2p_wait_lookups(self._live(), deadline.slice_ms()))
            states = self.lookup(asked)
            if deadline.passed():
                break
        return states

    @property
    def outcome(self) -> RequestOutcome:
        """How the request stands with its producer: ``Outcome.DONE`` while nothing is wrong, else why lookups are
        MISS and loads fail."""
        outcome = ctypes.c_uint32()
        with self._handle:
            detail = copied_text(library().p2p_request_outcome, self._live(), ctypes.byref(outcome))
        return RequestOutcome(Outcome(outcome.value), detail)

    def set_timeouts(self, load: Optional[float] = None, store: Optional[float] = None) -> None:
        """Deadlines in seconds of the jobs that are submitted from now on; ``None`` is the tier's."""
        load_ms, store_ms = configured_ms("load", load), configured_ms("store", store)
        with self._handle:
            check(library().p2p_request_set_timeouts(self._live(), load_ms, store_ms))

    def submit_load(self, job_id: int, keys: KeysLike, block_indexes: Sequence[int]) -> None:
        """Pulls ``keys[i]`` into block ``block_indexes[i]``. The blocks belong to the library until the job's result.

        ``job_id``: the engine's name for the job, unique among its live ones. In symmetric mode every key must be a
        hit of this round, and the load ends the round: other hits have to be looked up again.
        """
        named = packed(keys)
        blocks = block_indexes_for(named, block_indexes)
        with self._handle:
            check(library().p2p_submit_load(self._live(), job_id, ctypes.byref(named.struct), blocks))

    def submit_store(self, job_id: int, keys: KeysLike, block_indexes: Sequence[int]) -> None:
        """Offers block ``block_indexes[i]`` under ``keys[i]``. The blocks must keep their bytes until the result."""
        named = packed(keys)
        blocks = block_indexes_for(named, block_indexes)
        with self._handle:
            check(library().p2p_submit_store(self._live(), job_id, ctypes.byref(named.struct), blocks))

    def finish(self) -> None:
        """Ends the request. Again, or after the tier was closed, it does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        status = self._handle.finish_request(pointer)
        if status < 0 and not self._handle.closed:
            check(status)

    def __repr__(self) -> str:
        return f"<p2pkv.Request {'finished' if self._pointer is None else 'open'}>"
