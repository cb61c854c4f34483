from __future__ import annotations

import signal
import unittest

import p2pkv
from p2pkv import LookupState, Outcome

from .support import BLOCK_LEN, WAIT_S, blocks_of, decoder, make_keys, python_process

BLOCKS = 64

SERVER = """
import sys, p2pkv
keys = [bytes.fromhex(line) for line in sys.argv[1].split(",")]
pool = bytearray(b"".join((key * 200)[:4096] for key in keys))
with p2pkv.Tier(pool, 4096) as tier:
    if sys.argv[2] == "publish":
        tier.publish(keys, range(len(keys)))
    print(tier.local_id, flush=True)
    sys.stdin.read()
"""


class TwoProcessesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.keys = make_keys(BLOCKS)
        self.region = bytearray(BLOCKS * BLOCK_LEN)

    def start(self, what: str) -> tuple[str, int]:
        self.server = python_process(SERVER, ",".join(key.hex() for key in self.keys), what)
        self.addCleanup(self.end)
        assert self.server.stdout is not None
        host, _, port = self.server.stdout.readline().strip().rpartition(":")
        return host, int(port)

    def end(self) -> int:
        self.server.communicate(timeout=WAIT_S)
        return self.server.returncode

    def test_blocks_come_from_another_process(self) -> None:
        host, port = self.start("publish")
        params = {"remote_kv_source": {"kv_request_id": "r1", "remote_host": host, "remote_port": port}}
        with p2pkv.Tier(self.region, BLOCK_LEN) as tier, tier.request(params) as request:
            self.assertEqual(request.lookup_wait(self.keys, WAIT_S), [LookupState.HIT] * BLOCKS)
            request.submit_load(1, self.keys, range(BLOCKS))
            tier.wait(WAIT_S)[0].check()
        self.assertEqual(self.region, blocks_of(self.keys))
        self.assertEqual(self.end(), 0, "the server closes cleanly")

    def test_a_killed_peer_ends_the_load(self) -> None:
        host, port = self.start("nothing")
        with p2pkv.Tier(self.region, BLOCK_LEN) as tier, tier.request(decoder(host, port)) as request:
            request.submit_load(1, self.keys, range(BLOCKS))
            while not any(peer.state == p2pkv.PeerState.READY for peer in tier.peers()):
                self.assertEqual(tier.wait(0.01), [], "the load lives while the peer does")
            self.server.send_signal(signal.SIGKILL)
            (result,) = tier.wait(WAIT_S)
        self.assertEqual((result.outcome, result.outcome_class), (Outcome.PEER_LOST, p2pkv.OutcomeClass.RETRY))
        self.assertIn(f"{host}:{port}", result.detail)


if __name__ == "__main__":
    unittest.main()
