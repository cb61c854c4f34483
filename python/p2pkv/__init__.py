"""Pull KV-cache blocks from other LLM inference servers, and serve your own: Python over ``libp2pkv.so``.

    tier = p2pkv.Tier(p2pkv.Region.alloc(1024 * 65536), block_len=65536)
    with tier, tier.request({"remote_kv_source": {...}}) as request:
        states = request.lookup_wait(keys)
        request.submit_load(1, hits, block_indexes)
        result = tier.wait(timeout=30)[0].check()

The library is looked for at first use: ``P2PKV_LIBRARY``, next to this package, ``target/release`` of the source
tree, then the system's loader path. numpy is not needed, but its arrays can be regions.
"""

from ._ffi import library as _library
from .enums import (
    Feature,
    JobFlags,
    JobKind,
    LogLevel,
    LookupState,
    OffloadPolicy,
    Outcome,
    OutcomeClass,
    PeerState,
    Progress,
    SameHost,
    Status,
    Transport,
    UnpublishState,
)
from .errors import (
    AddressInUse,
    AddressInvalid,
    AlreadyExists,
    CallerError,
    DuplicateJob,
    FatalError,
    InvalidArgument,
    InvalidParams,
    JobFailed,
    LibraryError,
    LimitExceeded,
    NotAHit,
    NotFound,
    OsFailure,
    OutOfResources,
    P2PError,
    Panic,
    PermissionDenied,
    Poisoned,
    ShutDown,
    TransportError,
    TransportUnavailable,
    Unsupported,
    WrongProcess,
    WrongRole,
)
from .keys import Keys
from .log import log_to, log_to_stderr
from .records import JobResult, PeerInfo, RequestOutcome, Statistics, StoreJob
from .region import Region
from .request import Request
from .serve import ServeOps
from .tier import Tier


def version() -> str:
    """The version of the loaded library, such as ``0.1.0``."""
    return str(_library().p2p_version().decode())


def features() -> Feature:
    """What the loaded library can do."""
    return Feature(_library().p2p_features())


__all__ = [
    "AddressInUse",
    "AddressInvalid",
    "AlreadyExists",
    "CallerError",
    "DuplicateJob",
    "FatalError",
    "Feature",
    "InvalidArgument",
    "InvalidParams",
    "JobFailed",
    "JobFlags",
    "JobKind",
    "JobResult",
    "Keys",
    "LibraryError",
    "LimitExceeded",
    "LogLevel",
    "LookupState",
    "NotAHit",
    "NotFound",
    "OffloadPolicy",
    "OsFailure",
    "OutOfResources",
    "Outcome",
    "OutcomeClass",
    "P2PError",
    "Panic",
    "PeerInfo",
    "PeerState",
    "PermissionDenied",
    "Poisoned",
    "Progress",
    "Region",
    "Request",
    "RequestOutcome",
    "SameHost",
    "ServeOps",
    "ShutDown",
    "Statistics",
    "Status",
    "StoreJob",
    "Tier",
    "Transport",
    "TransportError",
    "TransportUnavailable",
    "UnpublishState",
    "Unsupported",
    "WrongProcess",
    "WrongRole",
    "features",
    "log_to",
    "log_to_stderr",
    "version",
]
