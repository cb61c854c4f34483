"""Waiting that Python can interrupt."""

from __future__ import annotations

import math
import time
from typing import Optional

from ._ffi import TIMEOUT_INFINITE

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
