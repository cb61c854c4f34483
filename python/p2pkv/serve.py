"""Answering peers' lookups from the engine."""

from __future__ import annotations

from typing import Optional, Sequence

from .enums import LookupState
from .records import StoreJob


class ServeOps:
    """What the engine answers when a peer asks for keys that are not published. Subclass it and hand it to
    ``Tier.set_serve_ops``.

    Each lookup of a peer is one serving context, named by ``serve_id``: ``new_request``, then ``lookup`` and
    ``create_store_job`` as often as needed, then ``request_finished`` on every path. The methods run without a lock
    of the library held, on the thread that calls ``Tier.serve`` or on the tier's own. They may call the tier, but
    not close it. An exception is logged to the logger ``p2pkv``, and the peer sees misses.
    """

    def new_request(self, serve_id: int, kv_request_id: str, peer_id: str) -> None:
        """A peer (``host:port``) begins to ask, for the transaction ``kv_request_id``."""

    def lookup(self, serve_id: int, keys: list[bytes]) -> Sequence[LookupState]:
        """One state for each key: HIT, MISS, or PENDING for a block that is on its way (asked again, and a miss
        after the serve timeout, 5 s by default)."""
        return [LookupState.MISS] * len(keys)

    def create_store_job(self, serve_id: int, keys: list[bytes]) -> Optional[StoreJob]:
        """Pins the blocks of keys that were hits, under one job id of the engine's choice. They must keep their
        bytes until the result of that job (kind STORE) comes out of ``Tier.poll``. ``None``: nothing was pinned."""
        return None

    def request_finished(self, serve_id: int) -> None:
        """The context is closed; ``serve_id`` is not used again."""
