"""What differs between versions of vLLM, as far as a peer of ours notices.

A name that the loaded modules have or have not is asked of them; behaviour that leaves no name is told by version.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types

P2P = "vllm.v1.kv_offload.tiering.p2p"

# Behaviour and the version it came with.
SINCE = {
    # A load that its request's end has aborted is reported.
    "reports_aborted_loads": (0, 29),
    # A fetch of a store that was given up fails in one round trip.
    "refuses_late_fetches": (0, 30),
}

LEGACY_ROLES = {"remote_decoder": "decode", "remote_prefiller": "prefill"}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def fitting(cls, **values):
    """An instance of a dataclass from those values that this version has a field for."""
    known = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in known})


class Version:
    def __init__(self, text: str):
        self.text = text
        self.base = importlib.import_module("vllm.v1.kv_offload.base")
        self.tiering = importlib.import_module("vllm.v1.kv_offload.tiering.base")
        self.manager = importlib.import_module(f"{P2P}.manager")
        protocol = importlib.import_module(f"{P2P}.session.protocol")
        self.legacy = not hasattr(protocol.FetchMsg, "KEYS")
        self.has_seed_default = hasattr(self.manager, "get_none_hash_seed")
        try:
            self.config = importlib.import_module("vllm.v1.kv_offload.config")
        except ModuleNotFoundError:
            self.config = None
        self.job_class = getattr(self.tiering, "TransferJob", None) or self.tiering.JobMetadata
        self.parent_class = getattr(self.tiering, "ParentManager", object)

    def can(self) -> list[str]:
        """What the tests ask a peer for."""
        able = [name for name, since in SINCE.items() if number(self.text) >= since]
        return able if self.legacy else [*able, "symmetric", "hash_seed"]

    # --- configuration ---

    def spec(self, model):
        """An OffloadingSpec for a model: see `vllm_peer.MODEL`."""

        class Spec(self.base.OffloadingSpec):
            get_manager = get_worker = None

        Spec.__abstractmethods__ = frozenset()
        return Spec(*((self._config(model),) if self.config else self._configs_of_0_25(model)))

    def _config(self, model):
        config = self.config
        return fitting(
            config.OffloadingConfig,
            groups=tuple(
                fitting(
                    config.OffloadingGroupConfig,
                    tokens_per_block=group["tokens_per_block"],
                    layer_names=tuple(group["layer_names"]),
                    group_id=index,
                )
                for index, group in enumerate(model["groups"])
            ),
            worker_kv_bytes_per_block=model["block_len"],
            enable_kv_cache_events=False,
            extra_config={},
            engine_id="interop",
            model=fitting(config.OffloadingModelConfig, name=model["name"], dtype=model["dtype"]),
            cache=config.OffloadingCacheConfig(
                tokens_per_hash=model["tokens_per_hash"], blocks_per_chunk=model["blocks_per_chunk"]
            ),
            parallel=fitting(
                config.OffloadingParallelConfig,
                rank=0,
                world_size=model["tp"] * model["pp"] * model["pcp"],
                tp_size=model["tp"],
                pp_size=model["pp"],
                pcp_size=model["pcp"],
                dcp_size=model["dcp"],
                data_parallel_index=0,
                data_parallel_size=1,
                data_parallel_rank_local=None,
                is_parallelism_agnostic=model["agnostic"],
            ),
            replicated_layout=model["replicated"],
            canonical_layout=model["layout"] is not None,
            kv_cache_layout=model["layout"],
        )

    def _configs_of_0_25(self, model):
        """That version reads the engine's own configuration objects."""
        plain = types.SimpleNamespace
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        groups = []
        for group in model["groups"]:
            spec = interface.FullAttentionSpec()
            spec.block_size = group["tokens_per_block"]
            groups.append(plain(kv_cache_spec=spec, layer_names=list(group["layer_names"])))
        engine = plain(
            kv_transfer_config=plain(kv_connector_extra_config={}),
            kv_events_config=None,
            model_config=plain(model=model["name"]),
            cache_config=plain(
                block_size=model["tokens_per_hash"],
                cache_dtype=model["dtype"],
                hash_block_size=None,
                enable_prefix_caching=True,
            ),
            parallel_config=plain(
                tensor_parallel_size=model["tp"],
                pipeline_parallel_size=model["pp"],
                prefill_context_parallel_size=model["pcp"],
                decode_context_parallel_size=model["dcp"],
                rank=0,
            ),
            use_v2_model_runner=False,
        )
        return engine, plain(kv_cache_groups=groups)

    def tier(self, spec, memory, host: str, port: int, unbound_store_s: float):
        cls = self.manager.P2PSecondaryTierManager
        settings = {"host": host, "port": port, "num_threads": 1}
        if "unbound_store_timeout_s" in inspect.signature(cls.__init__).parameters:
            settings["unbound_store_timeout_s"] = unbound_store_s
        else:
            self.manager._UNBOUND_STORE_TIMEOUT_S = unbound_store_s
        return cls(spec, memory, **settings)

    def configuration(self, spec) -> dict:
        """What vLLM hashes into the fingerprint, from its own function."""
        build = self.manager.FileMapper.from_offloading_spec
        chunk = {"blocks_per_file": "blocks_per_chunk", "gpu_blocks_per_file": "block_size_factor"}
        (argument,) = set(chunk) & set(inspect.signature(build).parameters)
        blocks = {argument: getattr(spec, chunk[argument])}
        return build(root_dir="", offloading_spec=spec, parallel_agnostic=True, **blocks).get_run_config()

    # --- calls ---

    def job(self, blocks, **values):
        return fitting(self.job_class, chunk_ids=blocks, block_ids=blocks, **values)

    def roles(self, params):
        if not self.legacy:
            return params
        return {LEGACY_ROLES.get(role, role): value for role, value in (params or {}).items()}
