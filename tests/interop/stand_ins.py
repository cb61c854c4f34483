"""Makes vLLM's real P2P tier importable without torch, CUDA or the engine.

The packages around it are replaced by hollow ones that still find the real modules inside; the few classes that the
tier only checks or stores are replaced by empty ones. Of the module that holds vLLM's block hashing, the definitions
that the tier uses are compiled from the real source. Everything of the tier itself runs unchanged.
"""

from __future__ import annotations

import ast
import importlib
import logging
import math
import os
import pathlib
import sys
import types
import typing

HOLLOW = [
    "vllm",
    "vllm.distributed",
    "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading",
    "vllm.utils",
]

SPECS = [
    "AttentionSpec",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheSpec",
    "MambaSpec",
    "MLAAttentionSpec",
    "UniformTypeKVCacheSpecs",
]

# Definitions of vllm/v1/core/kv_cache_utils.py; the rest of that module needs the engine.
HASHING = {
    "BlockHash",
    "DEFAULT_NONE_HASH_SEED",
    "NONE_HASH",
    "_CBOR_HASH_FUNCTIONS",
    "_NONE_HASH_SEED",
    "_NON_CRYPTO_HASH_FUNCTIONS",
    "get_none_hash_seed",
    "hash_block_tokens",
    "init_none_hash",
    "resolve_kv_cache_block_sizes",
    "resolve_none_hash_seed",
}


def put(name: str, **members: object) -> types.ModuleType:
    """A module of that name with just these members, seen by its package too."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], own, module)
    return module


def defined_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def compile_hashing(modules: pathlib.Path) -> None:
    source = modules / "vllm/v1/core/kv_cache_utils.py"
    tree = ast.parse(source.read_text(encoding="utf-8"), str(source))
    tree.body = [statement for statement in tree.body if defined_names(statement) & HASHING]
    hashing = importlib.import_module("vllm.utils.hashing")
    functions = {name: getattr(hashing, name, None) for name in ("sha256_cbor", "xxhash", "xxhash_cbor")}
    module = put(
        "vllm.v1.core.kv_cache_utils",
        os=os,
        math=math,
        logger=importlib.import_module("vllm.logger").init_logger("vllm.v1.core.kv_cache_utils"),
        MambaSpec=sys.modules["vllm.v1.kv_cache_interface"].MambaSpec,
        NewType=typing.NewType,
        **functions,
    )
    # Annotations name types of the engine; this file's future import keeps them unevaluated there, too.
    exec(compile(tree, str(source), "exec"), vars(module))


def put_nixl() -> None:
    """The wheel is called after its CUDA version; the package of the plain name would ask torch for that."""
    real = importlib.import_module("nixl_cu12")
    sys.modules["nixl"] = real
    for part in ("_api", "_bindings"):
        sys.modules[f"nixl.{part}"] = importlib.import_module(f"nixl_cu12.{part}")


def install(modules: pathlib.Path, version: str) -> None:
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_COLOR", "0")
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")

    put("torch", __version__="0", dtype=type("dtype", (), {}), Tensor=type("Tensor", (), {"__module__": "torch"}))
    for name in HOLLOW:
        put(name, __path__=[str(modules.joinpath(*name.split(".")))])
    sys.modules["vllm"].__version__ = version
    importlib.import_module("vllm.v1")
    put("vllm.v1.core", __path__=[str(modules / "vllm/v1/core")])
    put("vllm.platforms", current_platform=types.SimpleNamespace(is_rocm=lambda: False))
    put("vllm.distributed.parallel_state", is_global_first_rank=lambda: True, is_local_first_rank=lambda: True)
    specs = {name: type(name, (), {}) for name in SPECS}
    if (modules / "vllm/v1/kv_cache_layout.py").exists():
        specs["KVCacheLayout"] = importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout
    put("vllm.v1.kv_cache_interface", **specs)
    put_nixl()
    logger = importlib.import_module("vllm.logger")
    getattr(logger, "_configure_vllm_root_logger", lambda: logging.getLogger("vllm"))()
    compile_hashing(modules)
