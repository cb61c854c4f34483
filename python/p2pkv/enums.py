"""The numbers of the C header, under their names.

Numbers that this file does not know yet, because the library is newer, become members named ``UNKNOWN_<number>``.
"""

from __future__ import annotations

import enum
from typing import Any


class _OpenEnum(enum.IntEnum):
    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member


class Status(_OpenEnum):
    """What a call of the C library returned: 0 ok, above 0 not an error, below 0 an error."""

    OK = 0
    TIMED_OUT = 1
    BUSY = 2
    TRUNCATED = 3
    INVALID_ARGUMENT = -1
    UNSUPPORTED = -2
    WRONG_PROCESS = -3
    DUPLICATE_JOB = -4
    ALREADY_EXISTS = -5
    NOT_FOUND = -6
    INVALID_PARAMS = -7
    NOT_A_HIT = -8
    LIMIT_EXCEEDED = -9
    WRONG_ROLE = -10
    SHUT_DOWN = -11
    ADDRESS_IN_USE = -100
    ADDRESS_INVALID = -101
    TRANSPORT_UNAVAILABLE = -102
    OUT_OF_RESOURCES = -103
    PERMISSION_DENIED = -104
    OS_ERROR = -105
    PANIC = -900
    POISONED = -901


class Outcome(_OpenEnum):
    """How a job ended."""

    DONE = 0
    NOT_SUPPLIED = 1
    ABORTED = 2
    TIMED_OUT = 3
    PEER_LOST = 4
    INCOMPATIBLE = 5
    TRANSPORT_FAILED = 6
    NOT_FETCHED = 7
    NO_PEER = 8
    SHUT_DOWN = 9


class OutcomeClass(_OpenEnum):
    """What the engine should do about an outcome."""

    NONE = 0
    """Nothing: the job is done."""
    RETRY = 1
    """Ask again, here or elsewhere."""
    RECOMPUTE = 2
    """Compute the blocks."""
    FIX_CONFIGURATION = 3
    """An operator has to change a setting; compute the blocks meanwhile."""
    BUG = 4
    """The engine did something out of order."""


class JobKind(_OpenEnum):
    LOAD = 1
    STORE = 2


class JobFlags(enum.IntFlag):
    """What to keep in mind about the blocks of a finished job."""

    NONE = 0
    MAY_STILL_BE_READ = 1
    """Store: quarantine the blocks, a transfer may still read them."""
    MAY_STILL_BE_WRITTEN = 2
    """Load over nixl: quarantine the blocks, a late write may land."""


class LookupState(_OpenEnum):
    MISS = 0
    HIT = 1
    RETRY = 2
    """No answer yet: ask again."""
    PENDING = 3
    """Only in answers to peers: the block is being made, ask me again."""


class OffloadPolicy(_OpenEnum):
    CHUNK_LEVEL = 0
    """Store only blocks that are new."""
    REQUEST_LEVEL = 1
    """Store all blocks of the request: a consumer waits for each of them."""


class Transport(_OpenEnum):
    AUTO = 0
    TCP = 1
    NIXL = 2


class SameHost(_OpenEnum):
    AUTO = 0
    """Peers on this host copy from memory to memory where that can be had."""
    OFF = 1


class Progress(_OpenEnum):
    THREAD = 0
    """The tier has a thread of its own that advances everything."""
    CALLER = 1
    """No thread: ``Tier.poll`` and ``Tier.wait`` do the work."""


class PeerState(_OpenEnum):
    CONNECTING = 1
    HANDSHAKE = 2
    READY = 3
    DRAINING = 4
    BACKING_OFF = 5


class UnpublishState(_OpenEnum):
    REMOVED = 0
    BUSY = 1
    """A peer's round still holds the block; it stays published."""
    NOT_FOUND = 2


class LogLevel(_OpenEnum):
    OFF = 0
    ERROR = 1
    WARN = 2
    INFO = 3
    DEBUG = 4
    TRACE = 5


class Feature(enum.IntFlag):
    """What this build of the library can do."""

    NONE = 0
    TCP = 1
    NIXL = 2
    SAME_HOST = 4
    METRICS = 8
