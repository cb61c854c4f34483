"""One real vLLM P2P tier as a process, driven by lines (see lines.py). The engine around it is played here.

    vllm_peer.py VERSION {"num_blocks": N, "block_len": L, ...}
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import sys
import time

import lines
import prepare
import stand_ins

# What the fingerprint is made from, and what a tier is given by default.
MODEL = {
    "name": "test/model",
    "dtype": "bfloat16",
    "tokens_per_hash": 16,
    "blocks_per_chunk": 1,
    "groups": [{"tokens_per_block": 16, "layer_names": ["layers.0"]}],
    "tp": 1,
    "pp": 1,
    "pcp": 1,
    "dcp": 1,
    "agnostic": True,
    "replicated": False,
    "layout": None,
}


def make_parent(peer):
    """What answers lookups of other peers: a table of keys, and pins that are counted."""
    base, version = peer.version.base, peer.version

    class Parent(version.parent_class):
        def __init__(self):
            self.known = {}
            self.contexts = set()
            self.pinned = {}
            self.last_job = 1 << 40

        def on_new_request(self, req_context):
            self.contexts.add(req_context.req_id)
            return base.RequestOffloadingContext()

        def lookup(self, key, req_context):
            block, answers = self.known.get(key, (None, ["MISS"]))
            return base.LookupResult[answers.pop(0) if len(answers) > 1 else answers[0]]

        def create_store_job(self, keys, req_context):
            self.last_job += 1
            keys = list(keys)
            self.pinned[self.last_job] = keys
            return peer.job(req_context, self.last_job, keys, [self.known[key][0] for key in keys], False)

        def on_request_finished(self, req_context):
            self.contexts.discard(req_context.req_id)

    return Parent()


class Peer(lines.Peer):
    def __init__(self, text: str, options: dict):
        stand_ins.install(prepare.modules(text), text)
        versions = importlib.import_module("versions")
        self.version = versions.Version(text)
        if not self.version.legacy and not self.version.has_seed_default:
            os.environ.setdefault("PYTHONHASHSEED", "0")
        self.numpy = importlib.import_module("numpy")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        hashing = importlib.import_module("vllm.utils.hashing")
        utils.init_none_hash(hashing.get_hash_fn_by_name("sha256"))

        block_len, num_blocks = options["block_len"], options["num_blocks"]
        region = mmap.mmap(-1, block_len * num_blocks)
        self.blocks = lines.Blocks(memoryview(region), block_len)
        self.model = {**MODEL, "block_len": block_len, **options.get("model", {})}
        self.spec = self.version.spec(self.model)
        view = memoryview(self.numpy.frombuffer(region, self.numpy.uint8).reshape(num_blocks, block_len))
        self.tier = self.version.tier(
            self.spec, view, options["host"], options["port"], options.get("unbound_store_s", 60.0)
        )
        self.parent = make_parent(self)
        self.requests = {}
        self.results = {}
        self.errors = []

    def job(self, request, job, keys, blocks, is_load):
        blocks = self.numpy.array(blocks, dtype=self.numpy.int32)
        return self.version.job(blocks, job_id=job, keys=keys, is_promotion=is_load, req_context=request)

    def tick(self) -> None:
        """One step of the engine. vLLM's own loop survives an exception of its tier, too."""
        try:
            for result in self.tier.get_finished_jobs():
                if self.parent.pinned.pop(result.job_id, None) is None:
                    self.results[result.job_id] = result.success
            serve = getattr(self.tier, "serve_external_requests", None)
            if serve is not None:
                serve(self.parent)
            self.tier.on_schedule_end(self.version.base.ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    # --- commands ---

    def do_info(self):
        seed = getattr(self.tier, "_get_hash_seed", None)
        return {
            "id": self.tier._local_id,
            "pid": os.getpid(),
            "fingerprint": self.tier._data.config_fingerprint,
            "configuration": self.version.configuration(self.spec),
            "hash_seed": seed() if seed else getattr(self.tier, "_hash_seed", None),
            "legacy": self.version.legacy,
            "can": self.version.can(),
        }

    def do_request(self, name, params):
        request = self.version.base.ReqContext(req_id=name, kv_transfer_params=self.version.roles(params))
        self.requests[name] = request
        self.tier.on_new_request(request)

    def do_lookup(self, name, keys, timeout=10.0):
        request, keys, found = self.requests[name], lines.keys_of(keys), []

        def answered():
            found[:] = [self.tier.lookup(key, request).name for key in keys]
            return "RETRY" not in found

        if not self.until(answered, timeout):
            raise TimeoutError(f"no answer to the lookup within {timeout} s: {found[:8]}")
        return {"found": found}

    def do_store(self, name, job, keys, blocks):
        self.tier.submit_store(self.job(self.requests[name], job, lines.keys_of(keys), lines.blocks_of(blocks), False))

    def do_load(self, name, job, keys, blocks):
        self.tier.submit_load(self.job(self.requests[name], job, lines.keys_of(keys), lines.blocks_of(blocks), True))

    def do_results(self, jobs, timeout=10.0):
        """The outcome of each job: true, false, or null for none within the time."""
        self.until(lambda: all(job in self.results for job in jobs), timeout)
        return {"results": [self.results.get(job) for job in jobs]}

    def do_timed_load(self, name, job, keys, blocks):
        load = self.job(self.requests[name], job, lines.keys_of(keys), lines.blocks_of(blocks), True)
        began = time.perf_counter()
        self.tier.submit_load(load)
        if not self.until(lambda: job in self.results, 60) or not self.results[job]:
            raise AssertionError("the load did not succeed")
        return {"seconds": time.perf_counter() - began}

    def do_cpu(self):
        return {"seconds": time.process_time()}

    def do_forget(self):
        self.results.clear()

    def do_finish(self, name):
        self.tier.on_request_finished(self.requests.pop(name))

    def do_offer(self, keys, blocks, answers=("HIT",)):
        for key, block in zip(lines.keys_of(keys), lines.blocks_of(blocks), strict=True):
            self.parent.known[key] = (block, list(answers))

    def do_idle(self, timeout=10.0):
        """Nothing is left of any request."""

        def left():
            sessions = [
                role
                for session in self.tier._sessions.values()
                for role in (session._client, session._server)
                for name in ("_requests", "_inbound", "_outbound", "_inflight", "_store_jobs")
                if getattr(role, name, None)
            ]
            return sessions or self.parent.contexts or self.parent.pinned

        if not self.until(lambda: not left(), timeout):
            raise AssertionError(f"vLLM is not idle: {left()}")

    def do_sessions(self):
        return {"sessions": list(self.tier._sessions), "errors": self.errors}

    def do_set(self, name, value):
        """Changes a constant of the tier's modules, such as a timeout."""
        module, _, constant = name.rpartition(".")
        module = importlib.import_module(f"vllm.v1.kv_offload.tiering.p2p.{module}")
        before = getattr(module, constant)
        setattr(module, constant, value)
        return {"before": before}

    def do_hold(self, on):
        """Lets the tier's transfers seem to be under way, whatever has become of them."""
        data = self.tier._data
        if on:
            data._agent = Held(data._agent)
        else:
            data._agent = data._agent.agent

    def do_fingerprints(self, models):
        """For each model the configuration that vLLM hashes, and the digits it makes of that."""
        answers = []
        for model in models:
            configuration = self.version.configuration(self.version.spec({**MODEL, "block_len": 16384, **model}))
            digits = type(self.tier._data)._compute_fingerprint(configuration)
            answers.append({"configuration": configuration, "digits": digits})
        return {"answers": answers}


class Held:
    """A NIXL agent whose transfers never seem to end."""

    def __init__(self, agent):
        self.agent = agent

    def check_xfer_state(self, handle):
        return "PROC"

    def release_xfer_handle(self, handle):
        raise RuntimeError("held back by the test")

    def __getattr__(self, name):
        return getattr(self.agent, name)


def die_with_parent() -> None:
    """A driver that is killed leaves no peers behind."""
    PR_SET_PDEATHSIG, SIGKILL = 1, 9
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    out = lines.claim_stdout()
    peer = Peer(sys.argv[1], json.loads(sys.argv[2]))
    lines.serve(peer, out)
    peer.tier.shutdown()
    # The NIXL wheel's libraries crash in their destructors at a normal exit.
    sys.stderr.flush()
    os._exit(0)
