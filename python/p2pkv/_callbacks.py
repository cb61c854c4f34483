"""C function pointers into Python.

The pointers are made once and never freed: a function that is freed while it runs is a crash. They find their Python
object by the number that travels as ``user_data``, and the library's ``drop`` ends the entry.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import threading
from typing import Any, Callable, Optional, Sequence

from ._ffi import (
    NO_BLOCK,
    CreateStoreJobFn,
    DropFn,
    LogFn,
    LookupFn,
    NewRequestFn,
    RequestFinishedFn,
)
from .enums import LogLevel
from .keys import keys_of_struct
from .records import StoreJob

_logger = logging.getLogger("p2pkv")
_numbers = itertools.count(1)
_entries: dict[int, Any] = {}
_depth = threading.local()


def register(entry: Any) -> int:
    """Keeps ``entry`` alive until ``forget``; the number is for ``user_data``."""
    number = next(_numbers)
    _entries[number] = entry
    return number


def forget(number: int) -> None:
    _entries.pop(number, None)


def running() -> bool:
    """Whether this thread is inside a callback."""
    return getattr(_depth, "value", 0) > 0


def _guarded(body: Callable[..., None]) -> Callable[..., None]:
    """No exception may pass into the library: it is logged, and what the body did not answer stays a miss."""

    def call(user_data: Optional[int], *arguments: Any) -> None:
        _depth.value = getattr(_depth, "value", 0) + 1
        try:
            entry = _entries.get(user_data or 0)
            if entry is not None:
                body(entry, *arguments)
        except BaseException:
            _logger.exception("callback %s failed; peers see misses", body.__name__.lstrip("_"))
        finally:
            _depth.value -= 1

    return call


def _text(address: Optional[int], length: int) -> str:
    return ctypes.string_at(address, length).decode("utf-8", "replace") if address else ""


def _new_request(entry: Any, serve_id: int, id_data: int, id_len: int, peer_data: int, peer_len: int) -> None:
    entry.ops.new_request(serve_id, _text(id_data, id_len), _text(peer_data, peer_len))


def _lookup(entry: Any, serve_id: int, keys: Any, states_out: Any) -> None:
    asked = keys_of_struct(keys.contents)
    states = [int(state) for state in entry.ops.lookup(serve_id, asked)]
    _same_length("lookup", asked, states)
    for position, state in enumerate(states):
        states_out[position] = state


def _create_store_job(entry: Any, serve_id: int, keys: Any, job_id_out: Any, block_indexes_out: Any) -> None:
    asked = keys_of_struct(keys.contents)
    for position in range(len(asked)):
        block_indexes_out[position] = NO_BLOCK
    job: Optional[StoreJob] = entry.ops.create_store_job(serve_id, asked)
    if job is None:
        return
    blocks = [NO_BLOCK if block is None else int(block) for block in job.block_indexes]
    _same_length("create_store_job", asked, blocks)
    job_id_out[0] = job.job_id
    for position, block in enumerate(blocks):
        block_indexes_out[position] = block


def _same_length(name: str, asked: Sequence[bytes], answers: Sequence[int]) -> None:
    if len(answers) != len(asked):
        raise ValueError(f"{name} was asked for {len(asked)} keys and gave {len(answers)} answers")


def _request_finished(entry: Any, serve_id: int) -> None:
    entry.ops.request_finished(serve_id)


def _log(callback: Any, level: int, target: Optional[bytes], message: Optional[bytes]) -> None:
    callback(LogLevel(level), (target or b"").decode("utf-8", "replace"), (message or b"").decode("utf-8", "replace"))


def _drop(user_data: Optional[int]) -> None:
    forget(user_data or 0)


NEW_REQUEST = NewRequestFn(_guarded(_new_request))
LOOKUP = LookupFn(_guarded(_lookup))
CREATE_STORE_JOB = CreateStoreJobFn(_guarded(_create_store_job))
REQUEST_FINISHED = RequestFinishedFn(_guarded(_request_finished))
LOG = LogFn(_guarded(_log))
DROP = DropFn(_drop)
