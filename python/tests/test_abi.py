"""The numbers of the C header and of this module are the same: the compiler is asked for the one side."""

from __future__ import annotations

import ctypes
import ctypes.util
import enum
import re
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from typing import Iterator

import p2pkv
from p2pkv import _ffi
from p2pkv.errors import error_of

from .support import ROOT, compile_c

HEADER = ROOT / "include" / "p2pkv.h"

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "p2p_str": _ffi.P2pStr,
    "p2p_keys": _ffi.P2pKeys,
    "p2p_tier_config": _ffi.P2pTierConfig,
    "p2p_job_result": _ffi.P2pJobResult,
    "p2p_request_options": _ffi.P2pRequestOptions,
    "p2p_peer_info": _ffi.P2pPeerInfo,
    "p2p_tier_statistics": _ffi.P2pTierStatistics,
    "p2p_serve_ops": _ffi.P2pServeOps,
}
ENUMS: dict[str, type[enum.IntEnum]] = {
    "P2P_STATUS": p2pkv.Status,
    "P2P_OUTCOME": p2pkv.Outcome,
    "P2P_OUTCOME_CLASS": p2pkv.OutcomeClass,
    "P2P_JOB_KIND": p2pkv.JobKind,
    "P2P_LOOKUP": p2pkv.LookupState,
    "P2P_OFFLOAD": p2pkv.OffloadPolicy,
    "P2P_TRANSPORT": p2pkv.Transport,
    "P2P_SAME_HOST": p2pkv.SameHost,
    "P2P_PROGRESS": p2pkv.Progress,
    "P2P_PEER": p2pkv.PeerState,
    "P2P_UNPUBLISH": p2pkv.UnpublishState,
    "P2P_LOG": p2pkv.LogLevel,
}
CONSTANTS = {
    "P2P_ABI_VERSION": _ffi.ABI_VERSION,
    "P2P_NO_BLOCK": _ffi.NO_BLOCK,
    "P2P_TIMEOUT_INFINITE": _ffi.TIMEOUT_INFINITE,
    "P2P_SERVE_ON_PROGRESS_THREAD": _ffi.SERVE_ON_PROGRESS_THREAD,
    "P2P_REGION_HUGE_PAGES": _ffi.REGION_HUGE_PAGES,
    "P2P_JOB_MAY_STILL_BE_READ": p2pkv.JobFlags.MAY_STILL_BE_READ,
    "P2P_JOB_MAY_STILL_BE_WRITTEN": p2pkv.JobFlags.MAY_STILL_BE_WRITTEN,
    "P2P_FEATURE_TCP": p2pkv.Feature.TCP,
    "P2P_FEATURE_NIXL": p2pkv.Feature.NIXL,
    "P2P_FEATURE_SAME_HOST": p2pkv.Feature.SAME_HOST,
    "P2P_FEATURE_METRICS": p2pkv.Feature.METRICS,
}


def expected() -> Iterator[tuple[str, int]]:
    """C expressions, and what this module believes them to be."""
    for name, struct in STRUCTS.items():
        yield f"sizeof({name})", ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            yield f"offsetof({name}, {field})", getattr(struct, field).offset
            yield f"sizeof((({name} *)0)->{field})", getattr(struct, field).size
    for prefix, members in ENUMS.items():
        for member in members:
            yield f"{prefix}_{member.name}", member.value
    yield from CONSTANTS.items()


class AbiTest(unittest.TestCase):
    def test_sizes_offsets_and_numbers_equal_those_of_the_header(self) -> None:
        expressions = list(expected())
        prints = "\n".join(f'    printf("%lld\\n", (long long)({expression}));' for expression, _ in expressions)
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory) / "abi.c"
            source.write_text(f"#include <p2pkv.h>\n#include <stdio.h>\nint main(void) {{\n{prints}\n}}\n")
            compile_c(source, Path(directory) / "abi")
            done = subprocess.run([Path(directory) / "abi"], capture_output=True, text=True, check=True)
        in_c = [int(line) for line in done.stdout.split()]
        for (expression, here), there in zip(expressions, in_c):
            with self.subTest(expression):
                self.assertEqual(ctypes.c_int64(here).value, there)
        self.assertEqual(len(in_c), len(expressions))

    def test_every_function_of_the_header_has_a_prototype_here(self) -> None:
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
        declared = set(re.findall(r"\b(p2p_\w+)\s*\([^;{}]*\)\s*;", text))
        self.assertEqual(declared, set(_ffi._RETURNS_STATUS) | set(_ffi._RETURNS_OTHER))

    def test_names_of_numbers_equal_those_of_the_library(self) -> None:
        for status in p2pkv.Status:
            self.assertEqual(_ffi.library().p2p_status_name(status).decode(), status.name)
        for outcome in p2pkv.Outcome:
            self.assertEqual(_ffi.library().p2p_outcome_name(outcome).decode(), outcome.name)

    def test_numbers_of_a_newer_library_are_tolerated(self) -> None:
        self.assertEqual(p2pkv.Outcome(77).name, "UNKNOWN_77")
        self.assertEqual(p2pkv.JobFlags(0x80), 0x80)
        self.assertIs(type(error_of(-50, "new")), p2pkv.CallerError)
        self.assertIs(type(error_of(-150, "new")), p2pkv.TransportError)
        self.assertIs(type(error_of(-950, "new")), p2pkv.FatalError)

    def test_a_library_that_is_not_this_one_is_refused(self) -> None:
        other = ctypes.util.find_library("c")
        for path in ("/nowhere/libp2pkv.so", other):
            with self.subTest(path), self.assertRaises(p2pkv.LibraryError):
                with unittest.mock.patch.dict("os.environ", P2PKV_LIBRARY=str(path)):
                    _ffi.library.__wrapped__()


if __name__ == "__main__":
    unittest.main()
