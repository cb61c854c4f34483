"""The C examples and the snippets of the README do what they say, also when a peer is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Iterable

import p2pkv
from p2pkv import _ffi

from .support import ROOT, WAIT_S, compile_c, end, free_port, library_dir, python_process, start

EXAMPLES = ("01_version", "02_serve", "03_fetch", "04_pd", "05_event_loop")


class BuiltProgramsTest(unittest.TestCase):
    directory: tempfile.TemporaryDirectory[str]
    text: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.text = cls.path("text")
        cls.text.write_bytes((ROOT / "LICENSE").read_bytes()[: 400 * 16])

    @classmethod
    def path(cls, name: str) -> Path:
        return Path(cls.directory.name) / name

    def assert_ended(
        self, process: subprocess.Popen[str], expected: int, says: Iterable[str], timeout: float = 2 * WAIT_S
    ) -> None:
        code, output = end(process, timeout)
        self.assertEqual(code, expected, output)
        for words in says:
            self.assertRegex(output, words)


class ExamplePrograms(BuiltProgramsTest):
    """Under the address and undefined-behaviour sanitizers, leaks included."""

    FLAGS: tuple[str, ...] = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    RUNNER: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for name in EXAMPLES:
            compile_c(ROOT / "examples-c" / f"{name}.c", cls.path(name), *cls.FLAGS)

    def run_example(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        return start(*self.RUNNER, self.path(name), *arguments)

    def serve(self) -> tuple[subprocess.Popen[str], int]:
        port = free_port()
        process = self.run_example("02_serve", self.text, port)
        self.addCleanup(end, process)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        first_line = process.stdout.readline()
        self.assertRegex(first_line, f"^serving 400 blocks of 65536 bytes at 127.0.0.1:{port}")
        return process, port


class ExamplesTest(ExamplePrograms):
    def test_version_says_what_the_library_is(self) -> None:
        self.assert_ended(
            self.run_example("01_version"), 0, [f"libp2pkv {re.escape(p2pkv.version())}, ABI 1", "tcp +yes"]
        )

    def test_fetch_loads_and_verifies_what_serve_publishes(self) -> None:
        server, port = self.serve()
        fetch = self.run_example("03_fetch", "127.0.0.1", port, self.text)
        self.assert_ended(fetch, 0, [r"100\.0 %", r"400 +26214400 .* 400 +0  ok"])
        server.send_signal(signal.SIGTERM)
        self.assert_ended(server, 0, ["served 400 blocks, 25.0 MiB", "signal 15: closing"])

    def test_fetch_counts_what_the_peer_does_not_have(self) -> None:
        _, port = self.serve()
        longer = self.path("longer")
        longer.write_bytes(self.text.read_bytes() + b"sixteen bytes ..")
        fetch = self.run_example("03_fetch", "127.0.0.1", port, longer)
        self.assert_ended(fetch, 0, [r"401 +26214400 .* 400 +1  ok"])

    def test_fetch_of_another_text_says_that_nothing_is_there(self) -> None:
        _, port = self.serve()
        other = self.path("other")
        other.write_bytes(b"another text" * 100)
        self.assert_ended(
            self.run_example("03_fetch", "127.0.0.1", port, other), 1, ["no block of this text", "ready same_host"]
        )

    def test_prefill_and_decode_meet_in_either_order(self) -> None:
        for first in ("prefill", "decode"):
            with self.subTest(first=first):
                port = free_port()
                roles = {"prefill": ("prefill", port, self.text), "decode": ("decode", "127.0.0.1", port, self.text)}
                processes = {first: self.run_example("04_pd", *roles.pop(first))}
                if first == "decode":
                    out = processes["decode"].stdout
                    assert out is not None
                    self.assertIn("waiting for 400 blocks", out.readline())
                for other, arguments in roles.items():
                    processes[other] = self.run_example("04_pd", *arguments)
                self.assert_ended(processes["prefill"], 0, ["sent 25.0 MiB"])
                self.assert_ended(processes["decode"], 0, ["received 25.0 MiB", "checksum ok"])

    def test_the_event_loop_loads_all_its_requests(self) -> None:
        _, port = self.serve()
        loop = self.run_example("05_event_loop", "127.0.0.1", port, self.text)
        self.assert_ended(loop, 0, ["request 7: ", "400 blocks loaded, 0 to compute"])

    def test_bad_arguments_are_explained(self) -> None:
        for arguments, says in (
            (("03_fetch", "127.0.0.1", "70000", self.text), "70000: not a port"),
            (("03_fetch", "127.0.0.1", "5600", "/nowhere"), "/nowhere: No such file"),
            (("03_fetch", "127.0.0.1", "5600", os.devnull), "shorter than one block"),
            (("02_serve",), "usage: .*02_serve FILE"),
            (("04_pd", "prefill"), "usage: .*04_pd prefill PORT FILE"),
            (("05_event_loop",), "usage: .*05_event_loop HOST PORT FILE"),
        ):
            with self.subTest(arguments):
                self.assert_ended(self.run_example(*arguments), 1, [says])


class ExamplesWithoutPeerTest(ExamplePrograms):
    def test_fetch_without_a_server_says_why(self) -> None:
        fetch = self.run_example("03_fetch", "127.0.0.1", free_port(), self.text)
        self.assert_ended(
            fetch,
            1,
            ["no block of this text could be had", "fetch-1: NO_PEER: peer 127.0.0.1:.* nothing was heard of it"],
        )

    def test_serve_says_that_its_port_is_taken(self) -> None:
        with p2pkv.Tier(bytearray(64), 64) as tier:
            serve = self.run_example("02_serve", self.text, tier.address[1])
            self.assert_ended(serve, 1, ["p2p_tier_new: ADDRESS_IN_USE: "])

    def test_the_event_loop_without_a_server_computes_everything(self) -> None:
        loop = self.run_example("05_event_loop", "127.0.0.1", free_port(), self.text)
        self.assert_ended(loop, 1, ["loop-7: NO_PEER: peer ", "0 blocks loaded, 400 to compute"])


VALGRIND = shutil.which("valgrind")
VALGRIND_ERROR = 99


@unittest.skipIf(VALGRIND is None, "valgrind is not installed")
class ExamplesUnderValgrindTest(ExamplesTest):
    """The sanitizers see the examples, valgrind sees the library too."""

    # It makes them slow, on a busy machine by the dozen.
    FLAGS = ("-g", "-O1", "-DPATIENCE_MS=60000")
    RUNNER = (
        *("valgrind", "--quiet", f"--error-exitcode={VALGRIND_ERROR}", "--leak-check=full"),
        # Valgrind runs one thread at a time; without turns, one that polls can starve the others.
        *("--errors-for-leak-kinds=definite,indirect", "--fair-sched=try"),
    )


SERVER = """
import os, signal, sys, p2pkv
from p2pkv import LookupState, StoreJob

BLOCK_LEN, BLOCKS = 65536, 520

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

class KilledInTheSecondRound(p2pkv.ServeOps):
    rounds = 0

    def lookup(self, serve_id, keys):
        self.rounds += 1
        if self.rounds == 2:
            killed()
        return [LookupState.HIT] * len(keys)

    def create_store_job(self, serve_id, keys):
        return StoreJob(serve_id, range(len(keys)))

with p2pkv.Tier(p2pkv.Region.alloc(BLOCKS * BLOCK_LEN), BLOCK_LEN) as tier:
    if sys.argv[1] == "serve":
        tier.set_serve_ops(KilledInTheSecondRound(), on_progress_thread=True)
        print(tier.address[1], flush=True)
        sys.stdin.read()
    print(tier.address[1], flush=True)
    if sys.argv[1] == "decode":
        request = tier.request({"remote_prefiller": {
            "kv_request_id": "pd-1", "remote_host": "127.0.0.1", "remote_port": int(sys.argv[2])}})
        request.submit_load(1, [b"nobody has this"], [0])
    while not any(peer.state == p2pkv.PeerState.READY for peer in tier.peers()):
        tier.wait(0.01)
    sys.stdin.readline()
    killed()
"""


class BadPeerTest(BuiltProgramsTest):
    """An example whose peer is killed says so and ends, not with success, long before any timeout."""

    SOON_S = 15.0

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.text.write_bytes((ROOT / "LICENSE").read_bytes()[: 520 * 16])
        for name in ("03_fetch", "04_pd"):
            compile_c(ROOT / "examples-c" / f"{name}.c", cls.path(name), *ExamplePrograms.FLAGS)

    def peer(self, *arguments: object) -> tuple[subprocess.Popen[str], int]:
        process = python_process(SERVER, *map(str, arguments))
        self.addCleanup(end, process)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Lets it kill itself, once it has a session."""
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual(process.wait(WAIT_S), -signal.SIGKILL)

    def test_fetch_ends_when_the_server_is_killed_between_two_rounds(self) -> None:
        server, port = self.peer("serve")
        fetch = start(self.path("03_fetch"), "127.0.0.1", port, self.text)
        self.assertEqual(server.wait(WAIT_S), -signal.SIGKILL)
        self.assert_ended(fetch, 1, [f"fetch-1: PEER_LOST: peer 127.0.0.1:{port}: .+"], self.SOON_S)

    def test_fetch_says_so_when_a_server_has_wrong_bytes(self) -> None:
        _, port = self.peer("serve")
        one_round = self.path("one_round")
        one_round.write_bytes(self.text.read_bytes()[: 100 * 16])
        fetch = start(self.path("03_fetch"), "127.0.0.1", port, one_round)
        self.assert_ended(fetch, 1, [r"100 +6553600 .* 100 +0  WRONG"])

    def test_decode_ends_when_the_prefiller_is_killed(self) -> None:
        prefiller, port = self.peer("prefill")
        decode = start(self.path("04_pd"), "decode", "127.0.0.1", port, self.text)
        self.kill(prefiller)
        self.assert_ended(decode, 1, [f"load 0: PEER_LOST .RETRY: .*127.0.0.1:{port}"], self.SOON_S)

    def test_prefill_ends_when_the_decoder_is_killed(self) -> None:
        port = free_port()
        prefill = start(self.path("04_pd"), "prefill", port, self.text)
        decoder, _ = self.peer("decode", port)
        self.kill(decoder)
        self.assert_ended(prefill, 1, ["store 0: PEER_LOST .RETRY: .*127.0.0.1:"], self.SOON_S)


class ReadmeTest(BuiltProgramsTest):
    def snippet(self, language: str) -> str:
        found = re.search(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        assert found is not None
        return found.group(1)

    def test_the_c_snippet_pulls_its_block(self) -> None:
        pool = bytearray(b"kv" * 2048)
        with p2pkv.Tier(pool, 4096) as tier:
            tier.publish([b"0123456789abcdef0123456789abcdef" + bytes(4)], [0])
            source = self.path("snippet.c")
            source.write_text(self.snippet("c").replace("5600", str(tier.address[1])))
            compile_c(source, self.path("snippet"), *ExamplePrograms.FLAGS)
            self.assert_ended(start(self.path("snippet")), 0, ["^DONE "])

    def test_the_python_snippet_runs(self) -> None:
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), P2PKV_LIBRARY=_ffi.library()._name)
        done = subprocess.run(
            [sys.executable, "-c", self.snippet("python")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("outcome=<Outcome.DONE: 0>", done.stdout)

    def test_the_snippets_are_as_short_as_promised(self) -> None:
        self.assertLessEqual(self.snippet("c").count("\n"), 32)
        self.assertLessEqual(self.snippet("python").count("\n"), 15)

    def test_every_example_is_shorter_than_200_lines(self) -> None:
        for name in EXAMPLES:
            with self.subTest(name):
                lines = (ROOT / "examples-c" / f"{name}.c").read_text().count("\n")
                self.assertLess(lines, 200)

    def test_every_configuration_field_is_in_the_reference(self) -> None:
        readme = (ROOT / "README.md").read_text()
        for field, *_ in _ffi.P2pTierConfig._fields_:
            if field not in ("struct_size", "reserved"):
                with self.subTest(field):
                    self.assertIn(f"| `{field}` |", readme)

    def test_the_static_link_line_works(self) -> None:
        archive = library_dir() / "libp2pkv.a"
        flags = re.search(r"-lstdc\+\+ .*?-ldl", (ROOT / "README.md").read_text())
        assert flags is not None
        source = ROOT / "examples-c" / "01_version.c"
        command = ["cc", f"-I{ROOT / 'include'}", str(source), str(archive), *flags.group().split()]
        subprocess.run([*command, "-o", str(self.path("static"))], check=True, timeout=2 * WAIT_S)
        self.assert_ended(start(self.path("static")), 0, ["libp2pkv "])


class InstallTest(BuiltProgramsTest):
    def test_a_program_builds_with_pkg_config_and_runs_against_the_installed_library(self) -> None:
        if library_dir() != (ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release").resolve():
            self.skipTest("make install takes the release build, and another library is under test")
        prefix = self.path("prefix")
        subprocess.run(["make", "-s", "-C", str(ROOT), "install", f"PREFIX={prefix}"], check=True, timeout=WAIT_S)
        program, source = self.path("installed"), ROOT / "examples-c" / "01_version.c"
        subprocess.run(["cc", str(source), "-o", str(program), *self.flags(prefix)], check=True, timeout=WAIT_S)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(prefix / "lib"))
        done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True, timeout=WAIT_S)
        self.assertRegex(done.stdout, "^libp2pkv ")
        # By its soname, not by the name that the linker was given.
        (prefix / "lib" / "libp2pkv.so").unlink()
        subprocess.run([program], env=environment, capture_output=True, check=True, timeout=WAIT_S)

    def flags(self, prefix: Path) -> list[str]:
        described = (prefix / "lib" / "pkgconfig" / "p2pkv.pc").read_text()
        self.assertIn(f"Version: {p2pkv.version()}\n", described)
        if shutil.which("pkg-config") is None:
            return [f"-I{prefix}/include", f"-L{prefix}/lib", "-lp2pkv"]
        environment = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig"))
        command = ["pkg-config", "--cflags", "--libs", "p2pkv"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=WAIT_S)
        return done.stdout.split()


if __name__ == "__main__":
    unittest.main()
