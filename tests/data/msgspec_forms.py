"""Prints msgspec_forms.tsv: what msgspec (which vLLM encodes with) writes around every change of header width.

Columns: what is varied, its size or value, length of the message, SHA-256 of its bytes. Needs `pip install msgspec`.
`python3 tests/data/msgspec_forms.py > tests/data/msgspec_forms.tsv`
"""

import hashlib

import msgspec


def abort(kv_request_id, round_seq):
    return {"type": "abort_fetch", "kv_request_id": kv_request_id, "round_seq": round_seq}


def fetch(keys):
    return {"type": "fetch", "kv_request_id": "r", "keys": keys, "block_indexes": list(range(len(keys))), "round_seq": 0}


def connect(metadata):
    return {"type": "connect", "peer_id": "h:1", "agent_metadata": metadata, "base_addr": 0, "num_blocks": 1,
            "block_len": 1, "config_fingerprint": "", "hash_seed": ""}


CASES = {
    "id_len": (lambda n: abort("x" * n, 0), [1, 31, 32, 255, 256, 1024]),
    "round_seq": (lambda n: abort("r", n), [0, 127, 128, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**64 - 1]),
    "keys": (lambda n: fetch([b"\x07"] * n), [0, 15, 16, 2**16 - 1, 2**16]),
    "key_len": (lambda n: fetch([b"\x07" * n]), [1, 31, 32, 255, 256]),
    "metadata": (lambda n: connect(b"\x07" * n), [0, 255, 256, 2**16 - 1, 2**16]),
}

for name, (build, sizes) in CASES.items():
    for size in sizes:
        encoded = msgspec.msgpack.encode(build(size))
        print(name, size, len(encoded), hashlib.sha256(encoded).hexdigest(), sep="\t")
