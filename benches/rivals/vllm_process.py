"""One vLLM P2P tier as a process: that of the live tests, with its pace and its data plane to choose, and timed commands.

    vllm_process.py VERSION {"num_blocks": N, "block_len": L, "pause_s": S, "null": true or false}
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "interop"))

import lines  # noqa: E402
import stand_ins  # noqa: E402
import vllm_peer  # noqa: E402


class NullAgent:
    """Completes every transfer at once and moves nothing: what is left is the control plane."""

    def __init__(self, name, config):
        self.name = name

    def get_agent_metadata(self):
        return self.name.encode()

    def add_remote_agent(self, metadata):
        return metadata.decode()

    def get_xfer_descs(self, descs, mem_type=None):
        return descs

    def prep_xfer_dlist(self, *_, **__):
        return object()

    make_prepped_xfer = prep_xfer_dlist

    def transfer(self, handle):
        return "PROC"

    def check_xfer_state(self, handle):
        return "DONE"

    def __getattr__(self, name):
        return lambda *_, **__: None


def use_null_agent() -> None:
    """As soon as vLLM's modules can be imported, and before the tier is."""
    install = stand_ins.install

    def install_with_null(*arguments):
        install(*arguments)
        import vllm.distributed.nixl_utils as nixl_utils

        nixl_utils.NixlWrapper = NullAgent
        nixl_utils.nixl_agent_config = lambda **_: None

    stand_ins.install = install_with_null


class Peer(vllm_peer.Peer):
    def until(self, done, timeout: float) -> bool:
        give_up = time.monotonic() + timeout
        while not done():
            if time.monotonic() > give_up:
                return False
            self.tick()
            if lines.PAUSE_S:
                time.sleep(lines.PAUSE_S)
        return True

    def do_timed_load(self, name, job, keys, blocks):
        """Seconds, and CPU seconds of this process; keys and blocks are the engine's and are made before."""
        load = self.job(self.requests[name], job, lines.keys_of(keys), lines.blocks_of(blocks), True)
        used, began = time.process_time(), time.perf_counter()
        self.tier.submit_load(load)
        if not self.until(lambda: job in self.results, 60) or not self.results[job]:
            raise AssertionError("the load did not succeed")
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}

    def do_timed_lookup(self, name, keys):
        """Every key asked for, one flush, then only the last one until it is answered."""
        request, keys = self.requests[name], lines.keys_of(keys)
        retry = self.version.base.LookupResult.RETRY
        began = time.perf_counter()
        for key in keys:
            self.tier.lookup(key, request)
        if not self.until(lambda: self.tier.lookup(keys[-1], request) is not retry, 60):
            raise TimeoutError("no answer to the lookup")
        return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    vllm_peer.die_with_parent()
    answers = lines.claim_stdout()
    options = json.loads(sys.argv[2])
    lines.PAUSE_S = options["pause_s"]
    if options["null"]:
        use_null_agent()
    bytearray(16 << 20)  # as `free_something_large` in compare/node.rs
    peer = Peer(sys.argv[1], options)
    lines.serve(peer, answers)
    peer.tier.shutdown()
    # The NIXL wheel's libraries crash in their destructors at a normal exit.
    sys.stderr.flush()
    os._exit(0)
