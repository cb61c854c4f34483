"""The library's log."""

from __future__ import annotations

import logging
from typing import Callable, Union

from . import _callbacks
from ._ffi import DropFn, LogFn, check, library
from .enums import LogLevel

LogCallback = Callable[[LogLevel, str, str], None]

_PYTHON_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARN: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.TRACE: logging.DEBUG,
}


def log_to_stderr(level: LogLevel = LogLevel.WARN) -> None:
    """Lines to stderr. ``P2PKV_LOG`` overrides the level."""
    check(library().p2p_log_init(level))


def log_to(target: Union[logging.Logger, LogCallback, None], level: LogLevel = LogLevel.WARN) -> None:
    """Lines to a ``logging.Logger``, or to ``target(level, module, message)``; ``None`` ends that.

    One target per process. It is called on whatever thread has something to say, and must be quick.
    """
    lib = library()
    if target is None:
        check(lib.p2p_log_set_callback(LogLevel.OFF, LogFn(), None, DropFn()))
        return
    callback = _to_logger(target) if isinstance(target, logging.Logger) else target
    number = _callbacks.register(callback)
    try:
        check(lib.p2p_log_set_callback(level, _callbacks.LOG, number, _callbacks.DROP))
    except BaseException:
        _callbacks.forget(number)
        raise


def _to_logger(logger: logging.Logger) -> LogCallback:
    def write(level: LogLevel, module: str, message: str) -> None:
        logger.log(_PYTHON_LEVELS.get(level, logging.INFO), "%s: %s", module, message)

    return write
