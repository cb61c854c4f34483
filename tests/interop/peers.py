"""The driver's side: starts peers and talks to them."""

from __future__ import annotations

import json
import os
import pathlib
import random
import select
import socket
import subprocess
import sys
import tempfile
import time

import prepare

HERE = pathlib.Path(__file__).resolve().parent
HOST = "127.0.0.1"

# Longer than any command takes, also on a slow machine.
ANSWER_S = 120


class PeerFailed(AssertionError):
    """A command was refused, or the process is gone."""


def free_port() -> int:
    """Below the ports that connections are given, so that none takes it before the peer does."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


class Peer:
    """A process. `peer.COMMAND(**arguments)` is its answer."""

    def __init__(self, kind: str, command: list[str], options: dict, environment: dict):
        self.kind = kind
        self.options = {"host": HOST, "num_blocks": 64, "block_len": 16384, **options}
        self.options.setdefault("port", free_port())
        self.command = command
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*command, json.dumps(self.options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )
        self.info = self._answer()

    @property
    def id(self) -> str:
        return self.info["id"]

    def can(self, what: str) -> bool:
        return what in self.info["can"]

    def _answer(self):
        # Whole lines are written, so one that has begun ends soon.
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise PeerFailed(f"the {self.kind} peer has not answered for {ANSWER_S} s:\n{self.log_tail()}")
        line = self.process.stdout.readline()
        if not line:
            raise PeerFailed(f"the {self.kind} peer is gone, status {self.process.wait()}:\n{self.log_tail()}")
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise PeerFailed(f"the {self.kind} peer: {answer['error']}")
        return answer

    def __getattr__(self, command: str):
        if command.startswith("_"):
            raise AttributeError(command)

        def call(**arguments):
            self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self.process.stdin.flush()
            return self._answer()

        return call

    def log_text(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def is_deaf(self) -> bool:
        """The process lives, but its ZMQ I/O thread hangs: it greets no connection. A fault of vLLM's tier that can come
        over it when a peer leaves."""
        if self.process.poll() is not None:
            return False
        try:
            with socket.create_connection((HOST, self.options["port"]), 2) as probe:
                probe.settimeout(2)
                return probe.recv(1) == b""
        except OSError:
            return True

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()

    def close(self) -> int | None:
        """Ends it as an engine would; its exit status, or None if it had to be killed."""
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
                return None
        status = self.process.returncode
        self.kill()
        self.log.close()
        return status


def vllm(version: str, environment: dict | None = None, **options) -> Peer:
    command = [str(prepare.python()), str(HERE / "vllm_peer.py"), version]
    return Peer("vLLM", command, options, {"PYTHONDONTWRITEBYTECODE": "1", **(environment or {})})


def ours(environment: dict | None = None, **options) -> Peer:
    environment = {"P2PKV_NIXL_LIBRARY_DIR": str(prepare.nixl_library()), **(environment or {})}
    return Peer("own", [sys.executable, str(HERE / "our_peer.py")], options, environment)


def eventually(what: str, holds, timeout: float = 10.0) -> None:
    give_up = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.01)


# --- kv_transfer_params, as an orchestrator sends them ---


def serves(kv_request_id: str) -> dict:
    return {"remote_decoder": {"kv_request_id": kv_request_id}}


def pulls(role: str, producer: Peer, kv_request_id: str) -> dict:
    host, _, port = producer.id.rpartition(":")
    return {role: {"kv_request_id": kv_request_id, "remote_host": host, "remote_port": int(port)}}


def prefilled_by(producer: Peer, kv_request_id: str) -> dict:
    return pulls("remote_prefiller", producer, kv_request_id)


def cached_by(producer: Peer, kv_request_id: str) -> dict:
    return pulls("remote_kv_source", producer, kv_request_id)
