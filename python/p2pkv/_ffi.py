"""The C ABI: structs, prototypes, and how the shared library is found."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Iterator

from .enums import Status
from .errors import LibraryError, error_of

ABI_VERSION = 1
NO_BLOCK = 0xFFFF_FFFF
TIMEOUT_INFINITE = 0xFFFF_FFFF_FFFF_FFFF
SERVE_ON_PROGRESS_THREAD = 1
REGION_HUGE_PAGES = 1
SONAME = "libp2pkv.so.0"


class P2pStr(Structure):
    _fields_ = [("data", c_char_p), ("len", c_size_t)]


class P2pKeys(Structure):
    _fields_ = [("data", c_void_p), ("key_len", c_size_t), ("count", c_size_t)]


class P2pTierConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("host", P2pStr),
        ("advertised_host", P2pStr),
        ("base_addr", c_void_p),
        ("num_blocks", c_uint64),
        ("block_len", c_uint64),
        ("model_config_json", P2pStr),
        ("config_fingerprint", P2pStr),
        ("hash_seed", P2pStr),
        ("tcp_congestion", P2pStr),
        ("port", c_uint32),
        ("data_port", c_uint32),
        ("tcp_streams", c_uint32),
        ("transport", c_uint32),
        ("progress", c_uint32),
        ("max_peers", c_uint32),
        ("max_keys_per_message", c_uint32),
        ("max_key_len", c_uint32),
        ("max_id_len", c_uint32),
        ("max_outstanding_per_peer", c_uint32),
        ("max_message_bytes", c_uint64),
        ("handshake_timeout_ms", c_uint64),
        ("lookup_timeout_ms", c_uint64),
        ("load_timeout_ms", c_uint64),
        ("abort_ack_timeout_ms", c_uint64),
        ("store_timeout_ms", c_uint64),
        ("unbound_store_timeout_ms", c_uint64),
        ("serve_timeout_ms", c_uint64),
        ("idle_timeout_ms", c_uint64),
        ("nixl_backends", P2pStr),
        ("nixl_threads", c_uint32),
        ("same_host", c_uint32),
        ("region_offset", c_uint64),
        ("region_fd", c_int32),
        ("spin_us", c_uint32),
    ]


class P2pJobResult(Structure):
    _fields_ = [
        ("job_id", c_uint64),
        ("kind", c_uint32),
        ("outcome", c_uint32),
        ("outcome_class", c_uint32),
        ("flags", c_uint32),
        ("bytes", c_uint64),
        ("nanoseconds", c_uint64),
        ("detail", c_char * 216),
    ]


class P2pRequestOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kv_transfer_params_json", P2pStr),
        ("load_timeout_ms", c_uint64),
        ("lookup_timeout_ms", c_uint64),
        ("store_timeout_ms", c_uint64),
    ]


class P2pPeerInfo(Structure):
    _fields_ = [
        ("peer_id", c_char * 264),
        ("transport", c_char * 16),
        ("detail", c_char * 216),
        ("state", c_uint32),
        ("reserved", c_uint32),
        ("loads_live", c_uint64),
        ("stores_live", c_uint64),
        ("transfers_live", c_uint64),
        ("bytes_in", c_uint64),
        ("bytes_out", c_uint64),
        ("rounds_served", c_uint64),
        ("idle_ms", c_uint64),
    ]


class P2pTierStatistics(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("peers", c_uint64),
        ("requests", c_uint64),
        ("loads_live", c_uint64),
        ("stores_live", c_uint64),
        ("stores_parked", c_uint64),
        ("keys_published", c_uint64),
        ("blocks_pinned", c_uint64),
        ("jobs_done", c_uint64),
        ("jobs_failed", c_uint64),
        ("bytes_in", c_uint64),
        ("bytes_out", c_uint64),
        ("lookups_sent", c_uint64),
        ("lookups_answered", c_uint64),
        ("keys_hit", c_uint64),
        ("keys_missed", c_uint64),
        ("messages_in", c_uint64),
        ("messages_out", c_uint64),
        ("messages_dropped", c_uint64),
        ("messages_late", c_uint64),
        ("protocol_errors", c_uint64),
        ("sessions_opened", c_uint64),
        ("sessions_lost", c_uint64),
        ("results_queued", c_uint64),
    ]


# Texts reach the serve callbacks as pointer and length, so they are c_void_p: c_char_p would stop at a NUL.
NewRequestFn = CFUNCTYPE(None, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p, c_size_t)
LookupFn = CFUNCTYPE(None, c_void_p, c_uint64, POINTER(P2pKeys), POINTER(c_uint32))
CreateStoreJobFn = CFUNCTYPE(None, c_void_p, c_uint64, POINTER(P2pKeys), POINTER(c_uint64), POINTER(c_uint32))
RequestFinishedFn = CFUNCTYPE(None, c_void_p, c_uint64)
DropFn = CFUNCTYPE(None, c_void_p)
LogFn = CFUNCTYPE(None, c_void_p, c_uint32, c_char_p, c_char_p)


class P2pServeOps(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("user_data", c_void_p),
        ("new_request", NewRequestFn),
        ("lookup", LookupFn),
        ("create_store_job", CreateStoreJobFn),
        ("request_finished", RequestFinishedFn),
        ("drop", DropFn),
    ]


_TIER = c_void_p
_REQUEST = c_void_p
_KEYS = POINTER(P2pKeys)

_RETURNS_STATUS: dict[str, list[Any]] = {
    "p2p_tier_config_init": [POINTER(P2pTierConfig), c_size_t],
    "p2p_tier_new": [POINTER(P2pTierConfig), POINTER(_TIER)],
    "p2p_tier_drain": [_TIER, c_uint64],
    "p2p_tier_event_fd": [_TIER, POINTER(c_int32)],
    "p2p_tier_local_id": [_TIER, c_char_p, c_size_t, POINTER(c_size_t)],
    "p2p_tier_has_pending_work": [_TIER, POINTER(c_uint32)],
    "p2p_request_options_init": [POINTER(P2pRequestOptions), c_size_t],
    "p2p_request_new": [_TIER, POINTER(P2pRequestOptions), POINTER(_REQUEST)],
    "p2p_request_offload_policy": [_REQUEST, POINTER(c_uint32)],
    "p2p_request_set_timeouts": [_REQUEST, c_uint64, c_uint64],
    "p2p_request_outcome": [_REQUEST, POINTER(c_uint32), c_char_p, c_size_t, POINTER(c_size_t)],
    "p2p_request_finish": [_REQUEST],
    "p2p_lookup": [_REQUEST, _KEYS, POINTER(c_uint32)],
    "p2p_flush_lookups": [_TIER],
    "p2p_wait_lookups": [_REQUEST, c_uint64],
    "p2p_submit_load": [_REQUEST, c_uint64, _KEYS, POINTER(c_uint32)],
    "p2p_submit_store": [_REQUEST, c_uint64, _KEYS, POINTER(c_uint32)],
    "p2p_poll_finished": [_TIER, POINTER(P2pJobResult), c_size_t, c_size_t, POINTER(c_size_t)],
    "p2p_wait_finished": [_TIER, POINTER(P2pJobResult), c_size_t, c_size_t, c_uint64, POINTER(c_size_t)],
    "p2p_publish": [_TIER, _KEYS, POINTER(c_uint32)],
    "p2p_unpublish": [_TIER, _KEYS, POINTER(c_uint32)],
    "p2p_serve": [_TIER],
    "p2p_tier_set_serve_ops": [_TIER, POINTER(P2pServeOps)],
    "p2p_peers": [_TIER, POINTER(P2pPeerInfo), c_size_t, c_size_t, POINTER(c_size_t)],
    "p2p_tier_stats": [_TIER, POINTER(P2pTierStatistics)],
    "p2p_tier_metrics_text": [_TIER, c_char_p, c_size_t, POINTER(c_size_t)],
    "p2p_region_alloc": [c_uint64, c_uint32, POINTER(c_void_p)],
    "p2p_region_free": [c_void_p],
    "p2p_log_init": [c_uint32],
    "p2p_log_set_callback": [c_uint32, LogFn, c_void_p, DropFn],
}

_RETURNS_OTHER: dict[str, tuple[Any, list[Any]]] = {
    "p2p_tier_free": (None, [_TIER]),
    "p2p_status_name": (c_char_p, [c_int32]),
    "p2p_outcome_name": (c_char_p, [c_uint32]),
    "p2p_last_error": (c_char_p, []),
    "p2p_version": (c_char_p, []),
    "p2p_abi_version": (c_uint32, []),
    "p2p_features": (c_uint64, []),
}


def _candidates() -> Iterator[str]:
    """Where the library may be. ``P2PKV_LIBRARY`` is final: a wrong path there is an error, not a hint."""
    named = os.environ.get("P2PKV_LIBRARY")
    if named:
        yield named
        return
    package = Path(__file__).resolve().parent
    for directory in (package, package.parent.parent / "target" / "release"):
        for name in (SONAME, "libp2pkv.so"):
            if (directory / name).exists():
                yield str(directory / name)
    yield SONAME


def _open() -> ctypes.CDLL:
    reasons = []
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            reasons.append(f"{candidate}: {error}")
    raise LibraryError(
        "libp2pkv.so cannot be loaded; build it with `make`, install it, or name it in P2PKV_LIBRARY. Tried: "
        + "; ".join(reasons)
    )


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library with all prototypes set. Raises ``LibraryError``."""
    lib = _open()
    try:
        lib.p2p_abi_version.restype = c_uint32
        found = lib.p2p_abi_version()
        if found != ABI_VERSION:
            raise LibraryError(f"{lib._name} has ABI {found}, this module was written for ABI {ABI_VERSION}")
        for name, argtypes in _RETURNS_STATUS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = c_int32, argtypes
        for name, (restype, argtypes) in _RETURNS_OTHER.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = restype, argtypes
    except AttributeError as error:
        raise LibraryError(f"{lib._name} is not libp2pkv: {error}") from error
    return lib


def check(status: int) -> int:
    """Raises for an error, and gives other codes back. Must run on the thread that made the call."""
    if status < 0:
        raise error_of(status, library().p2p_last_error().decode("utf-8", "replace"))
    return status


def copied_text(function: Any, *arguments: Any) -> str:
    """The text that ``function(*arguments, buf, cap, len_out)`` copies out."""
    capacity = 512
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        length = c_size_t()
        status = check(function(*arguments, buffer, capacity, ctypes.byref(length)))
        if status != Status.TRUNCATED:
            return buffer.value.decode("utf-8", "replace")
        capacity = max(length.value + 1, 2 * capacity)


def text(value: str | None) -> P2pStr:
    """A view of the text; keeps the encoded bytes alive itself."""
    if not value:
        return P2pStr(None, 0)
    encoded = value.encode("utf-8")
    return P2pStr(encoded, len(encoded))
