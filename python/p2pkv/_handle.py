"""The C handle of a tier, made safe to close while other Python threads use it."""

from __future__ import annotations

import os
import threading
from typing import Any, Optional

from . import _callbacks
from ._ffi import library
from .errors import ShutDown, WrongProcess


class TierHandle:
    """Counts the calls inside, since ``p2p_tier_free`` must come last and alone. ``with handle as pointer`` is one
    call.

    open --close()--> closing (new calls are refused, old ones end) --> freed
    """

    __slots__ = ("_changed", "_pointer", "_closing", "_calls", "_pid", "_requests", "_memory")

    def __init__(self, pointer: int, memory: Any):
        self._changed = threading.Condition()
        self._pointer: Optional[int] = pointer
        self._closing = False
        self._calls = 0
        self._pid = os.getpid()
        self._requests: set[int] = set()
        self._memory = memory

    def __enter__(self) -> int:
        self._refuse_child()
        with self._changed:
            if self._closing or self._pointer is None:
                raise ShutDown("the tier is closed")
            self._calls += 1
            return self._pointer

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._calls -= 1
            if self._calls == 0:
                self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closing

    def _refuse_child(self) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(f"the tier was opened by process {self._pid}, this is its child {os.getpid()}")

    def add_request(self, pointer: int) -> None:
        with self._changed:
            self._requests.add(pointer)

    def finish_request(self, pointer: int) -> int:
        """The status of ``p2p_request_finish``; 0 when that was done already."""
        with self._changed:
            if pointer not in self._requests:
                return 0
            self._requests.remove(pointer)
            self._calls += 1
        try:
            return int(library().p2p_request_finish(pointer))
        finally:
            self.__exit__()

    def close(self) -> None:
        """Waits for calls inside, finishes open requests, frees. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closing = True
            while self._calls > 0:
                self._changed.wait()
            pointer, self._pointer = self._pointer, None
            requests, self._requests = self._requests, set()
        if pointer is None:
            return
        for request in requests:
            library().p2p_request_finish(request)
        library().p2p_tier_free(pointer)
        self._memory = None

    def close_when_collected(self) -> None:
        """``close`` for the garbage collector, which may run inside a callback, on the very thread that
        ``p2p_tier_free`` would wait for."""
        if _callbacks.running():
            threading.Thread(target=self.close, name="p2pkv-close").start()
        else:
            self.close()
