"""One tier of this library as a process, driven by lines (see lines.py), through the Python module.

    our_peer.py {"num_blocks": N, "block_len": L, ...}
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import threading
import time

import lines

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import p2pkv  # noqa: E402


class Offers(p2pkv.ServeOps):
    """What answers lookups of other peers: a table of keys with scripted answers, and pins that are counted."""

    def __init__(self):
        self.known = {}
        self.contexts = set()
        self.pinned = set()
        self.last_job = 1 << 40
        self.lock = threading.Lock()

    def new_request(self, serve_id, kv_request_id, peer_id):
        self.contexts.add(serve_id)

    def lookup(self, serve_id, keys):
        return [self._state(key) for key in keys]

    def _state(self, key):
        _, answers = self.known.get(key, (None, ["MISS"]))
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return p2pkv.LookupState["PENDING" if answer in ("HIT_PENDING", "RETRY") else answer]

    def create_store_job(self, serve_id, keys):
        with self.lock:
            self.last_job += 1
            self.pinned.add(self.last_job)
        return p2pkv.StoreJob(self.last_job, [self.known[key][0] for key in keys])

    def request_finished(self, serve_id):
        self.contexts.discard(serve_id)


class Peer(lines.Peer):
    def __init__(self, options: dict):
        block_len = options["block_len"]
        region = p2pkv.Region.alloc(block_len * options["num_blocks"])
        self.blocks = lines.Blocks(region.view, block_len)
        self.tier = p2pkv.Tier(
            region,
            block_len,
            host=options["host"],
            port=options["port"],
            transport=p2pkv.Transport[options.get("transport", "NIXL")],
            **options.get("settings", {}),
        )
        self.offers = Offers()
        self.tier.set_serve_ops(self.offers, on_progress_thread=True)
        self.requests = {}
        self.results = {}

    def tick(self) -> None:
        for result in self.tier.poll():
            if result.job_id in self.offers.pinned:
                self.offers.pinned.discard(result.job_id)
            else:
                self.results[result.job_id] = result

    # --- commands ---

    def do_info(self):
        return {"id": self.tier.local_id, "pid": os.getpid(), "legacy": False, "can": ["symmetric"]}

    def do_request(self, name, params):
        self.requests[name] = self.tier.request(params)

    def do_lookup(self, name, keys, timeout=10.0):
        found = self.requests[name].lookup_wait(lines.keys_of(keys), timeout)
        return {"found": [state.name for state in found]}

    def do_store(self, name, job, keys, blocks):
        self.requests[name].submit_store(job, lines.keys_of(keys), lines.blocks_of(blocks))

    def do_load(self, name, job, keys, blocks):
        self.requests[name].submit_load(job, lines.keys_of(keys), lines.blocks_of(blocks))

    def do_results(self, jobs, timeout=10.0):
        """The outcome of each job: true, false, or null for none within the time."""
        self.until(lambda: all(job in self.results for job in jobs), timeout)
        found = [self.results.get(job) for job in jobs]
        return {
            "results": [result and result.ok for result in found],
            "outcomes": [result and result.outcome.name for result in found],
            "flags": [result and int(result.flags) for result in found],
            "details": [result and result.detail for result in found],
        }

    def do_timed_load(self, name, job, keys, blocks):
        keys, blocks = p2pkv.Keys(lines.keys_of(keys)), lines.blocks_of(blocks)
        began = time.perf_counter()
        self.requests[name].submit_load(job, keys, blocks)
        (result,) = self.tier.wait(60)
        took = time.perf_counter() - began
        result.check()
        return {"seconds": took}

    def do_forget(self):
        self.results.clear()

    def do_finish(self, name):
        self.requests.pop(name).finish()

    def do_offer(self, keys, blocks, answers=("HIT",)):
        for key, block in zip(lines.keys_of(keys), lines.blocks_of(blocks), strict=True):
            self.offers.known[key] = (block, list(answers))

    def do_idle(self, timeout=10.0):
        """Nothing is left of any request."""

        def left():
            levels = self.tier.stats()
            names = ("loads_live", "stores_live", "stores_parked", "blocks_pinned")
            levels = {name: getattr(levels, name) for name in names if getattr(levels, name)}
            return levels or self.offers.contexts or self.offers.pinned

        if not self.until(lambda: not left(), timeout):
            raise AssertionError(f"the tier is not idle: {left()}")

    def do_peers(self):
        return {"peers": [peer._asdict() for peer in self.tier.peers()]}

    def do_sessions(self):
        return {"sessions": [peer.peer_id for peer in self.tier.peers()]}

    def do_cpu(self):
        return {"seconds": time.process_time()}


if __name__ == "__main__":
    out = lines.claim_stdout()
    p2pkv.log_to_stderr(p2pkv.LogLevel.DEBUG)
    try:
        peer = Peer(json.loads(sys.argv[1]))
    except p2pkv.P2PError as error:
        out.write(json.dumps({"ok": False, "error": str(error), "status": type(error).__name__}) + "\n")
        sys.exit(0)
    lines.serve(peer, out)
    peer.tier.close()
