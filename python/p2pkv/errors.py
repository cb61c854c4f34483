"""Exceptions: one class for each status of the C library, grouped in its bands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .enums import Status

if TYPE_CHECKING:
    from .records import JobResult


class P2PError(Exception):
    """A call was refused or failed. ``status`` names the reason, ``detail`` is the library's own text."""

    def __init__(self, detail: str, status: int | None = None):
        self.status = Status(status if status is not None else _status_of(type(self)))
        self.detail = detail
        super().__init__(f"{self.status.name}: {detail}" if detail else self.status.name)


class CallerError(P2PError):
    """The call itself was wrong, or came at the wrong time (-1 to -99)."""


class TransportError(P2PError):
    """The network or the operating system said no (-100 to -199)."""


class FatalError(P2PError):
    """The tier is broken; only ``close`` is of use (-900 and below)."""


class InvalidArgument(CallerError, ValueError):
    """A value that no call can accept."""


class Unsupported(CallerError):
    """Not in this build of the library."""


class WrongProcess(CallerError):
    """The tier was opened before a fork, and this is the child."""


class DuplicateJob(CallerError):
    """A live job has this ``job_id``."""


class AlreadyExists(CallerError):
    """It is there already, or a live request uses this ``kv_request_id``."""


class NotFound(CallerError, LookupError):
    """No such key, request or job."""


class InvalidParams(CallerError, ValueError):
    """``kv_transfer_params`` that cannot be used."""


class NotAHit(CallerError):
    """A load named a key that the peer did not confirm in this round."""


class LimitExceeded(CallerError):
    """More than a configured limit allows."""


class WrongRole(CallerError):
    """The request's roles do not include this call."""


class ShutDown(CallerError):
    """The tier is closed."""


class AddressInUse(TransportError):
    """Another socket has this host and port."""


class AddressInvalid(TransportError):
    """Not an address of this machine, or not an address."""


class TransportUnavailable(TransportError):
    """The chosen transport cannot be used here."""


class OutOfResources(TransportError):
    """No memory, file descriptor or thread left."""


class PermissionDenied(TransportError):
    """The operating system does not allow it."""


class OsFailure(TransportError):
    """Another error of the operating system."""


class Panic(FatalError):
    """A bug in the library was caught. Please report ``detail``."""


class Poisoned(FatalError):
    """An earlier call ended in ``Panic``."""


class LibraryError(ImportError):
    """``libp2pkv.so`` is not there, or is not the one that this module was written for."""


class JobFailed(Exception):
    """Raised by ``JobResult.check``: the job did not end in DONE. ``result`` says how and why."""

    def __init__(self, result: JobResult):
        self.result = result
        super().__init__(
            f"{result.kind.name.lower()} {result.job_id}: {result.outcome.name} "
            f"({result.outcome_class.name}): {result.detail}"
        )


_CLASSES: dict[Status, type[P2PError]] = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.UNSUPPORTED: Unsupported,
    Status.WRONG_PROCESS: WrongProcess,
    Status.DUPLICATE_JOB: DuplicateJob,
    Status.ALREADY_EXISTS: AlreadyExists,
    Status.NOT_FOUND: NotFound,
    Status.INVALID_PARAMS: InvalidParams,
    Status.NOT_A_HIT: NotAHit,
    Status.LIMIT_EXCEEDED: LimitExceeded,
    Status.WRONG_ROLE: WrongRole,
    Status.SHUT_DOWN: ShutDown,
    Status.ADDRESS_IN_USE: AddressInUse,
    Status.ADDRESS_INVALID: AddressInvalid,
    Status.TRANSPORT_UNAVAILABLE: TransportUnavailable,
    Status.OUT_OF_RESOURCES: OutOfResources,
    Status.PERMISSION_DENIED: PermissionDenied,
    Status.OS_ERROR: OsFailure,
    Status.PANIC: Panic,
    Status.POISONED: Poisoned,
}


def _status_of(error_class: type[P2PError]) -> Status:
    for status, known in _CLASSES.items():
        if known is error_class:
            return status
    raise TypeError(f"{error_class.__name__} needs a status")


def error_of(status: int, detail: str) -> P2PError:
    """The exception for a negative status; unknown numbers get the class of their band."""
    known = _CLASSES.get(Status(status))
    if known is not None:
        return known(detail, status)
    if status <= -900:
        return FatalError(detail, status)
    if -199 <= status <= -100:
        return TransportError(detail, status)
    return CallerError(detail, status)
