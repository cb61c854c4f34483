"""The tier: one region, one control socket, many peers."""

from __future__ import annotations

import ctypes
import json
import weakref
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

from . import _callbacks
from ._deadline import Deadline, configured_ms
from ._ffi import (
    SERVE_ON_PROGRESS_THREAD,
    P2pJobResult,
    P2pPeerInfo,
    P2pRequestOptions,
    P2pServeOps,
    P2pTierConfig,
    P2pTierStatistics,
    check,
    copied_text,
    library,
    text,
)
from ._handle import TierHandle
from .enums import (
    JobFlags,
    JobKind,
    Outcome,
    OutcomeClass,
    PeerState,
    Progress,
    SameHost,
    Status,
    Transport,
    UnpublishState,
)
from .errors import InvalidArgument
from .keys import KeysLike, block_indexes_for, packed
from .records import JobResult, PeerInfo, Statistics
from .region import BorrowedMemory, RegionLike
from .request import Request
from .serve import ServeOps

Params = Union[str, Mapping[str, Any], None]

_BATCH = 64
_PEER_GUESS = 16


class _Serving(NamedTuple):
    """Keeps the tier alive too: were it collected by the garbage collector inside a callback, it would wait for
    itself."""

    ops: ServeOps
    tier: Tier


class Tier:
    """Shares the blocks of ``region`` with other tiers.

    Every method may be called from any thread at any time; ``close`` waits for the others. Calls give the GIL up and
    return at once, except ``wait`` and ``drain`` (their timeout) and ``close`` (about 3 s).

    A tier is a context manager. ``fileno`` makes it usable with ``select``, ``selectors`` and
    ``asyncio``'s ``loop.add_reader``.
    """

    def __init__(
        self,
        region: RegionLike,
        block_len: int,
        *,
        num_blocks: Optional[int] = None,
        host: Optional[str] = None,
        port: int = 0,
        advertised_host: Optional[str] = None,
        model_config: Params = None,
        config_fingerprint: Optional[str] = None,
        hash_seed: Optional[str] = None,
        transport: Transport = Transport.AUTO,
        progress: Progress = Progress.THREAD,
        data_port: int = 0,
        tcp_streams: int = 0,
        tcp_congestion: Optional[str] = None,
        nixl_backends: Optional[Sequence[str]] = None,
        nixl_threads: int = 0,
        same_host: SameHost = SameHost.AUTO,
        region_fd: int = 0,
        region_offset: int = 0,
        spin_us: int = 0,
        max_peers: int = 0,
        max_keys_per_message: int = 0,
        max_key_len: int = 0,
        max_id_len: int = 0,
        max_outstanding_per_peer: int = 0,
        max_message_bytes: int = 0,
        handshake_timeout: Optional[float] = None,
        lookup_timeout: Optional[float] = None,
        load_timeout: Optional[float] = None,
        abort_ack_timeout: Optional[float] = None,
        store_timeout: Optional[float] = None,
        unbound_store_timeout: Optional[float] = None,
        serve_timeout: Optional[float] = None,
        idle_timeout: Optional[float] = None,
    ):
        """Opens the tier and binds its sockets. Everything but the region has a default; 0 and ``None`` mean it.

        region: ``Region``, ``bytearray``, writable C-contiguous ``memoryview``, ``mmap`` or numpy array. The tier
            keeps it alive, and it must not be resized, until ``close``.
        block_len: bytes of one block; peers must have the same.
        num_blocks: default all that fit; then ``block_len`` must divide the region.
        host, port: the control socket. Default ``P2PKV_HOST`` or 127.0.0.1, and ``P2PKV_PORT`` or any free port.
        advertised_host: what peers dial; needed when ``host`` is a wildcard.
        model_config: everything that decides whether blocks of two engines mean the same, as a mapping or as JSON
            text. Peers with another one are refused. Empty: compatible with everyone.
        config_fingerprint: 16 hex digits instead of ``model_config``.
        hash_seed: of the key's hash chain; default ``vllm-none-hash``.
        nixl_backends: names of NIXL plug-ins; default UCX. nixl_threads: of NIXL's own, for large transfers.
        same_host: whether peers on this host copy from memory to memory. region_fd, region_offset: the memfd that the
            region is a shared mapping of, and where it begins there, so that they can map it; a ``Region`` needs none.
        spin_us: microseconds for which the tier's thread looks for news before it sleeps.
        Timeouts are in seconds. See the configuration reference in the README for every default.
        """
        memory = BorrowedMemory(region)
        config = P2pTierConfig()
        check(library().p2p_tier_config_init(ctypes.byref(config), ctypes.sizeof(config)))
        config.base_addr = memory.address
        config.block_len = block_len
        config.num_blocks = _blocks_in(memory.nbytes, block_len, num_blocks)
        config.host = text(host)
        config.advertised_host = text(advertised_host)
        config.model_config_json = text(_json(model_config))
        config.config_fingerprint = text(config_fingerprint)
        config.hash_seed = text(hash_seed)
        config.tcp_congestion = text(tcp_congestion)
        config.nixl_backends = text(None if nixl_backends is None else ",".join(nixl_backends))
        numbers = {
            "port": port,
            "data_port": data_port,
            "tcp_streams": tcp_streams,
            "nixl_threads": nixl_threads,
            "same_host": same_host,
            "spin_us": spin_us,
            "transport": transport,
            "progress": progress,
            "max_peers": max_peers,
            "max_keys_per_message": max_keys_per_message,
            "max_key_len": max_key_len,
            "max_id_len": max_id_len,
            "max_outstanding_per_peer": max_outstanding_per_peer,
            "max_message_bytes": max_message_bytes,
        }
        for name, number in numbers.items():
            setattr(config, name, _unsigned(name, number, 64 if name == "max_message_bytes" else 32))
        config.region_fd = _unsigned("region_fd", region_fd, 31)
        config.region_offset = _unsigned("region_offset", region_offset, 64)
        timeouts = {
            "handshake_timeout": handshake_timeout,
            "lookup_timeout": lookup_timeout,
            "load_timeout": load_timeout,
            "abort_ack_timeout": abort_ack_timeout,
            "store_timeout": store_timeout,
            "unbound_store_timeout": unbound_store_timeout,
            "serve_timeout": serve_timeout,
            "idle_timeout": idle_timeout,
        }
        for name, seconds in timeouts.items():
            setattr(config, f"{name}_ms", configured_ms(name, seconds))

        pointer = ctypes.c_void_p()
        check(library().p2p_tier_new(ctypes.byref(config), ctypes.byref(pointer)))
        self._handle = TierHandle(pointer.value or 0, memory)
        self._caller_makes_progress = progress == Progress.CALLER
        # Also at interpreter exit: a callback of a live tier must not meet a dead interpreter.
        self._finalizer = weakref.finalize(self, self._handle.close_when_collected)

    def __enter__(self) -> Tier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<p2pkv.Tier {'closed' if self._handle.closed else self.local_id}>"

    def close(self) -> None:
        """Ends everything within about 3 s: open requests are finished, peers told, memory given back. Results not
        taken yet are lost. Not from a callback of this tier; again, it does nothing."""
        if _callbacks.running():
            raise RuntimeError("Tier.close was called from a callback of p2pkv, which it would wait for")
        self._handle.close()
        self._finalizer.detach()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    @property
    def local_id(self) -> str:
        """This tier's peer id: ``host:port`` (``[v6]:port``) of its control socket, as peers dial it."""
        with self._handle as tier:
            return copied_text(library().p2p_tier_local_id, tier)

    @property
    def address(self) -> tuple[str, int]:
        """``local_id`` as host and port, for a peer's ``remote_host`` and ``remote_port``."""
        host, _, port = self.local_id.rpartition(":")
        return host.strip("[]"), int(port)

    def fileno(self) -> int:
        """Readable while results are queued. It belongs to the tier: wait for it, never read or close it."""
        descriptor = ctypes.c_int32()
        with self._handle as tier:
            check(library().p2p_tier_event_fd(tier, ctypes.byref(descriptor)))
        return descriptor.value

    @property
    def has_pending_work(self) -> bool:
        pending = ctypes.c_uint32()
        with self._handle as tier:
            check(library().p2p_tier_has_pending_work(tier, ctypes.byref(pending)))
        return pending.value != 0

    def request(
        self,
        kv_transfer_params: Params = None,
        *,
        load_timeout: Optional[float] = None,
        lookup_timeout: Optional[float] = None,
        store_timeout: Optional[float] = None,
    ) -> Request:
        """A request in the roles that ``kv_transfer_params`` gives it (a mapping, or JSON text as the orchestrator
        sent it); ``None`` is no role. Timeouts in seconds, for this request only."""
        options = P2pRequestOptions()
        check(library().p2p_request_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        options.kv_transfer_params_json = text(_json(kv_transfer_params))
        options.load_timeout_ms = configured_ms("load_timeout", load_timeout)
        options.lookup_timeout_ms = configured_ms("lookup_timeout", lookup_timeout)
        options.store_timeout_ms = configured_ms("store_timeout", store_timeout)
        pointer = ctypes.c_void_p()
        with self._handle as tier:
            check(library().p2p_request_new(tier, ctypes.byref(options), ctypes.byref(pointer)))
            self._handle.add_request(pointer.value or 0)
        return Request(self, self._handle, pointer.value or 0)

    def flush_lookups(self) -> None:
        """Sends the keys that were looked up since the last flush, one message for each request."""
        with self._handle as tier:
            check(library().p2p_flush_lookups(tier))

    def poll(self, limit: Optional[int] = None) -> list[JobResult]:
        """Results that are queued, at most ``limit``; all of them by default. Never waits."""
        found: list[JobResult] = []
        while limit is None or len(found) < limit:
            capacity = _BATCH if limit is None else min(_BATCH, limit - len(found))
            batch = (P2pJobResult * capacity)()
            count = ctypes.c_size_t()
            with self._handle as tier:
                check(
                    library().p2p_poll_finished(tier, batch, ctypes.sizeof(P2pJobResult), capacity, ctypes.byref(count))
                )
            found += [_result(batch[i]) for i in range(count.value)]
            if count.value < capacity:
                break
        return found

    def wait(self, timeout: Optional[float] = None, limit: int = _BATCH) -> list[JobResult]:
        """As ``poll``, but waits for the first result. An empty list: ``timeout`` seconds passed. Ctrl-C and ``close``
        on another thread end it."""
        deadline = Deadline(timeout)
        batch = (P2pJobResult * max(limit, 1))()
        count = ctypes.c_size_t()
        while True:
            with self._handle as tier:
                check(
                    library().p2p_wait_finished(
                        tier,
                        batch,
                        ctypes.sizeof(P2pJobResult),
                        len(batch),
                        deadline.slice_ms(),
                        ctypes.byref(count),
                    )
                )
            if count.value > 0 or deadline.passed():
                return [_result(batch[i]) for i in range(count.value)]

    def make_progress(self) -> None:
        """With ``Progress.CALLER``, advances the tier without taking results. Otherwise does nothing."""
        if self._caller_makes_progress:
            none = (P2pJobResult * 1)()
            count = ctypes.c_size_t()
            with self._handle as tier:
                check(library().p2p_poll_finished(tier, none, ctypes.sizeof(P2pJobResult), 0, ctypes.byref(count)))

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits until no transfer and no load is in flight; nothing is aborted. False: ``timeout`` seconds passed."""
        deadline = Deadline(timeout)
        while True:
            with self._handle as tier:
                status = check(library().p2p_tier_drain(tier, deadline.slice_ms()))
            if status == Status.OK or deadline.passed():
                return status == Status.OK

    def publish(self, keys: KeysLike, block_indexes: Sequence[int]) -> None:
        """Offers block ``block_indexes[i]`` to every peer under ``keys[i]``, until ``unpublish``. Lookups for it are
        answered without the engine. The bytes must stay as they are meanwhile."""
        named = packed(keys)
        blocks = block_indexes_for(named, block_indexes)
        with self._handle as tier:
            check(library().p2p_publish(tier, ctypes.byref(named.struct), blocks))

    def unpublish(self, keys: KeysLike) -> list[UnpublishState]:
        """Takes keys back: all of them, or none if a state is BUSY, which is a block that a peer is reading. Ask again
        then. REMOVED beside a BUSY means that the key alone could have been taken back."""
        named = packed(keys)
        states = (ctypes.c_uint32 * len(named))()
        with self._handle as tier:
            check(library().p2p_unpublish(tier, ctypes.byref(named.struct), states))
        return [UnpublishState(state) for state in states]

    def set_serve_ops(self, ops: Optional[ServeOps], *, on_progress_thread: bool = False) -> None:
        """Lets ``ops`` answer peers' lookups, after the published blocks; ``None`` ends that.

        The calls come from ``serve``, or with ``on_progress_thread`` from the tier's own thread. While ops are set
        the tier is kept alive: ``close`` it.
        """
        if ops is None:
            with self._handle as tier:
                check(library().p2p_tier_set_serve_ops(tier, None))
            return
        number = _callbacks.register(_Serving(ops, self))
        c_ops = P2pServeOps(
            struct_size=ctypes.sizeof(P2pServeOps),
            flags=SERVE_ON_PROGRESS_THREAD if on_progress_thread else 0,
            user_data=number,
            new_request=_callbacks.NEW_REQUEST,
            lookup=_callbacks.LOOKUP,
            create_store_job=_callbacks.CREATE_STORE_JOB,
            request_finished=_callbacks.REQUEST_FINISHED,
            drop=_callbacks.DROP,
        )
        try:
            with self._handle as tier:
                check(library().p2p_tier_set_serve_ops(tier, ctypes.byref(c_ops)))
        except BaseException:
            _callbacks.forget(number)
            raise

    def serve(self) -> None:
        """Runs the serve ops on this thread for everything that peers asked since the last call."""
        with self._handle as tier:
            check(library().p2p_serve(tier))

    def peers(self) -> list[PeerInfo]:
        capacity = _PEER_GUESS
        while True:
            infos = (P2pPeerInfo * capacity)()
            count = ctypes.c_size_t()
            with self._handle as tier:
                status = check(
                    library().p2p_peers(tier, infos, ctypes.sizeof(P2pPeerInfo), capacity, ctypes.byref(count))
                )
            if status != Status.TRUNCATED:
                return [_peer(infos[i]) for i in range(min(count.value, capacity))]
            capacity = max(count.value, 2 * capacity)

    def stats(self) -> Statistics:
        stats = P2pTierStatistics(struct_size=ctypes.sizeof(P2pTierStatistics))
        with self._handle as tier:
            check(library().p2p_tier_stats(tier, ctypes.byref(stats)))
        return Statistics(*(getattr(stats, name) for name in Statistics._fields))

    def metrics_text(self) -> str:
        """OpenMetrics text, for Prometheus and others."""
        with self._handle as tier:
            return copied_text(library().p2p_tier_metrics_text, tier)


def _blocks_in(nbytes: int, block_len: int, num_blocks: Optional[int]) -> int:
    if block_len < 1:
        raise InvalidArgument(f"block_len is {block_len}, expected at least 1 byte")
    if num_blocks is None:
        if nbytes % block_len != 0:
            raise InvalidArgument(f"the region's {nbytes} bytes are not a whole number of blocks of {block_len} bytes")
        return nbytes // block_len
    if num_blocks < 1 or num_blocks * block_len > nbytes:
        raise InvalidArgument(f"{num_blocks} blocks of {block_len} bytes do not fit the region's {nbytes} bytes")
    return num_blocks


def _unsigned(name: str, number: int, bits: int) -> int:
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{name} is {number}, expected 0 to 2**{bits} - 1")
    return int(number)


def _json(value: Params) -> Optional[str]:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _result(result: P2pJobResult) -> JobResult:
    return JobResult(
        result.job_id,
        JobKind(result.kind),
        Outcome(result.outcome),
        OutcomeClass(result.outcome_class),
        JobFlags(result.flags),
        result.bytes,
        result.nanoseconds,
        result.detail.decode("utf-8", "replace"),
    )


def _peer(info: P2pPeerInfo) -> PeerInfo:
    return PeerInfo(
        info.peer_id.decode("utf-8", "replace"),
        info.transport.decode("utf-8", "replace"),
        info.detail.decode("utf-8", "replace"),
        PeerState(info.state),
        info.loads_live,
        info.stores_live,
        info.transfers_live,
        info.bytes_in,
        info.bytes_out,
        info.rounds_served,
        info.idle_ms,
    )
