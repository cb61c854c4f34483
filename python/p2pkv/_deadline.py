"""Waiting that Python can interrupt."""

from __future__ import annotations

import math
import time
from typing import Optional

from ._ffi import TIMEOUT_INFINITE
from .errors import InvalidArgument

_SLICE_S = 0.1


def milliseconds(seconds: float) -> int:
    return TIMEOUT_INFINITE if seconds == math.inf else math.ceil(seconds * 1000)


class Deadline:
    """``timeout`` seconds from now, ``None`` for never. Waited for in slices, so that Ctrl-C and ``close`` on another
    thread are heard."""

    __slots__ = ("_at",)

    def __init__(self, timeout: Optional[float]):
        self._at = math.inf if timeout is None else time.monotonic() + timeout

    def slice_ms(self) -> int:
        """How long the library may wait in one call."""
        return milliseconds(min(max(0.0, self._at - time.monotonic()), _SLICE_S))

    def passed(self) -> bool:
        return time.monotonic() >= self._at


def configured_ms(name: str, seconds: Optional[float]) -> int:
    """0 is the library's word for its default, so no time at all cannot be said."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise InvalidArgument(f"{name} is {seconds}, expected more than 0 seconds, or None for the default")
    return milliseconds(seconds)
