"""The C examples and the snippets of the README do what they say. Programs are built with the address and
undefined-behaviour sanitizers, leaks included."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Iterable

import p2pkv
from p2pkv import _ffi

from .support import ROOT, WAIT_S, compile_c, library_dir

SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
EXAMPLES = ("01_version", "02_serve", "03_fetch", "04_pd", "05_event_loop")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(program: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(program), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=2 * WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"still running: {process.args!r}\n{output}") from None
    return process.returncode, output


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

    def assert_ended(self, process: subprocess.Popen[str], expected: int, says: Iterable[str]) -> None:
        code, output = end(process)
        self.assertEqual(code, expected, output)
        for words in says:
            self.assertRegex(output, words)


class ExamplesTest(BuiltProgramsTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for name in EXAMPLES:
            compile_c(ROOT / "examples-c" / f"{name}.c", cls.path(name), *SANITIZERS)

    def serve(self) -> tuple[subprocess.Popen[str], int]:
        port = free_port()
        process = start(self.path("02_serve"), self.text, port)
        self.addCleanup(end, process)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        first_line = process.stdout.readline()
        self.assertRegex(first_line, f"^serving 400 blocks of 65536 bytes at 127.0.0.1:{port}")
        return process, port

    def test_every_example_is_shorter_than_200_lines(self) -> None:
        for name in EXAMPLES:
            with self.subTest(name):
                lines = (ROOT / "examples-c" / f"{name}.c").read_text().count("\n")
                self.assertLess(lines, 200)

    def test_version_says_what_the_library_is(self) -> None:
        self.assert_ended(
            start(self.path("01_version")), 0, [f"libp2pkv {re.escape(p2pkv.version())}, ABI 1", "tcp +yes"]
        )

    def test_fetch_loads_and_verifies_what_serve_publishes(self) -> None:
        server, port = self.serve()
        fetch = start(self.path("03_fetch"), "127.0.0.1", port, self.text)
        self.assert_ended(fetch, 0, [r"100\.0 %", r"400 +26214400 .* 400 +0  ok"])
        server.send_signal(signal.SIGTERM)
        self.assert_ended(server, 0, ["served 400 blocks, 25.0 MiB", "signal 15: closing"])

    def test_fetch_counts_what_the_peer_does_not_have(self) -> None:
        _, port = self.serve()
        longer = self.path("longer")
        longer.write_bytes(self.text.read_bytes() + b"sixteen bytes ..")
        fetch = start(self.path("03_fetch"), "127.0.0.1", port, longer)
        self.assert_ended(fetch, 0, [r"401 +26214400 .* 400 +1  ok"])

    def test_fetch_of_another_text_says_that_nothing_is_there(self) -> None:
        _, port = self.serve()
        other = self.path("other")
        other.write_bytes(b"another text" * 100)
        self.assert_ended(
            start(self.path("03_fetch"), "127.0.0.1", port, other), 1, ["no block of this text", "ready tcp"]
        )

    def test_fetch_without_a_server_says_why(self) -> None:
        fetch = start(self.path("03_fetch"), "127.0.0.1", free_port(), self.text)
        self.assert_ended(
            fetch, 1, ["no block of this text could be had", "load 0: NO_PEER .FIX_CONFIGURATION.*: .*127.0.0.1"]
        )

    def test_serve_says_that_its_port_is_taken(self) -> None:
        with p2pkv.Tier(bytearray(64), 64) as tier:
            serve = start(self.path("02_serve"), self.text, tier.address[1])
            self.assert_ended(serve, 1, ["p2p_tier_new: ADDRESS_IN_USE: "])

    def test_prefill_and_decode_meet_in_either_order(self) -> None:
        for first in ("prefill", "decode"):
            with self.subTest(first=first):
                port = free_port()
                roles = {"prefill": ("prefill", port, self.text), "decode": ("decode", "127.0.0.1", port, self.text)}
                processes = {first: start(self.path("04_pd"), *roles.pop(first))}
                if first == "decode":
                    out = processes["decode"].stdout
                    assert out is not None
                    self.assertIn("waiting for 400 blocks", out.readline())
                for other, arguments in roles.items():
                    processes[other] = start(self.path("04_pd"), *arguments)
                self.assert_ended(processes["prefill"], 0, ["sent 25.0 MiB"])
                self.assert_ended(processes["decode"], 0, ["received 25.0 MiB", "checksum ok"])

    def test_the_event_loop_loads_all_its_requests(self) -> None:
        _, port = self.serve()
        loop = start(self.path("05_event_loop"), "127.0.0.1", port, self.text)
        self.assert_ended(loop, 0, ["request 7: ", "400 blocks loaded, 0 to compute"])

    def test_the_event_loop_without_a_server_computes_everything(self) -> None:
        loop = start(self.path("05_event_loop"), "127.0.0.1", free_port(), self.text)
        self.assert_ended(loop, 1, ["load 7: NO_PEER .FIX_CONF", "0 blocks loaded, 400 to compute"])

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
                self.assert_ended(start(self.path(arguments[0]), *arguments[1:]), 1, [says])


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
            compile_c(source, self.path("snippet"), *SANITIZERS)
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
        self.assertLessEqual(self.snippet("c").count("\n"), 40)
        self.assertLessEqual(self.snippet("python").count("\n"), 15)

    def test_every_configuration_field_is_in_the_reference(self) -> None:
        readme = (ROOT / "README.md").read_text()
        for field, *_ in _ffi.P2pTierConfig._fields_:
            if field != "struct_size":
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


if __name__ == "__main__":
    unittest.main()
