"""Values that come back from the library."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from .enums import JobFlags, JobKind, Outcome, OutcomeClass, PeerState
from .errors import JobFailed


class JobResult(NamedTuple):
    """The one result of a load or store."""

    job_id: int
    kind: JobKind
    outcome: Outcome
    outcome_class: OutcomeClass
    flags: JobFlags
    bytes: int
    """Bytes moved."""
    nanoseconds: int
    """From submission to this result."""
    detail: str
    """Why, and with which peer; empty when DONE."""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.DONE

    def check(self) -> JobResult:
        """Returns itself when DONE, else raises ``JobFailed``."""
        if not self.ok:
            raise JobFailed(self)
        return self


class RequestOutcome(NamedTuple):
    """How a request stands with its producer."""

    outcome: Outcome
    """DONE while nothing is wrong; else what a load would end with now."""
    detail: str
    """Why, and with which peer; empty when DONE."""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.DONE


class PeerInfo(NamedTuple):
    """One peer as the tier sees it."""

    peer_id: str
    """``host:port`` of its control socket."""
    transport: str
    """``tcp``, ``nixl``, or empty while that is not settled."""
    detail: str
    """Why this transport, or why the peer is not ready."""
    state: PeerState
    loads_live: int
    stores_live: int
    transfers_live: int
    bytes_in: int
    bytes_out: int
    rounds_served: int
    idle_ms: int


class Statistics(NamedTuple):
    """Counters since the tier was opened, and the levels of the moment (``peers`` to ``blocks_pinned``,
    ``results_queued``)."""

    peers: int
    requests: int
    loads_live: int
    stores_live: int
    stores_parked: int
    keys_published: int
    blocks_pinned: int
    jobs_done: int
    jobs_failed: int
    bytes_in: int
    bytes_out: int
    lookups_sent: int
    lookups_answered: int
    keys_hit: int
    keys_missed: int
    messages_in: int
    messages_out: int
    messages_dropped: int
    messages_late: int
    protocol_errors: int
    sessions_opened: int
    sessions_lost: int
    results_queued: int


class StoreJob(NamedTuple):
    """What ``ServeOps.create_store_job`` answers: the job that holds the pins, and where the blocks are."""

    job_id: int
    block_indexes: Sequence[Optional[int]]
    """One for each key; ``None``: it cannot be served after all."""
