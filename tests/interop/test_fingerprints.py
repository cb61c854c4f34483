"""tests/data/vllm_fingerprints.tsv says what vLLM's own function makes of generated models; the library's unit tests
compare with it. Here: vLLM still says the same. `python3 test_fingerprints.py write` writes the file anew.

Columns: the configuration as JSON in a JSON string, keys in vLLM's order; the digits.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import unittest

import peers

TABLE = pathlib.Path(__file__).resolve().parents[1] / "data" / "vllm_fingerprints.tsv"
VERSION = "0.33.0"
COUNT = 200

NAMES = ["meta-llama/Llama-3.1-8B", "modèle/été", "模型/七", "модель", "a\u2028b", "emoji 🦙/x", 'quote"\\slash', "ﬀ/ß"]
DTYPES = ["bfloat16", "float16", "fp8_e4m3", "auto"]
LAYOUTS = [None, None, None, "LBNHC", "LBHNC"]


def model(number: int) -> dict:
    chance = random.Random(f"model {number}")
    group = lambda: {  # noqa: E731
        "tokens_per_block": chance.choice([1, 16, 64, 784, 2**31, 16.5, 1e16, 0.1]),
        "layer_names": [f"{chance.choice(NAMES)}.{layer}" for layer in range(chance.randrange(5))],
    }
    replicated = chance.random() < 0.2
    return {
        "name": f"{chance.choice(NAMES)}-{number}",
        "dtype": chance.choice(DTYPES),
        "tokens_per_hash": chance.choice([1, 16, 32, 1e22, 2.5]),
        "blocks_per_chunk": chance.choice([1, 4, 64]),
        "groups": [group() for _ in range(chance.randrange(1, 6))],
        "tp": chance.choice([1, 2, 8]),
        "pp": chance.choice([1, 2]),
        "pcp": 1,
        "dcp": chance.choice([1, 2]),
        "agnostic": chance.random() < 0.7,
        "replicated": replicated,
        "layout": None if replicated else chance.choice(LAYOUTS),
    }


def table() -> str:
    peer = peers.vllm(VERSION)
    try:
        answers = peer.fingerprints(models=[model(number) for number in range(COUNT)])["answers"]
    finally:
        peer.close()
    rows = []
    for answer in answers:
        text = json.dumps(answer["configuration"], ensure_ascii=False)
        rows.append(json.dumps(text, ensure_ascii=False).replace("\u2028", "\\u2028") + "\t" + answer["digits"] + "\n")
    return "".join(rows)


class Fingerprints(unittest.TestCase):
    def test_the_table_is_what_vllm_says(self):
        self.assertEqual(table(), TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        TABLE.write_text(table(), encoding="utf-8")
    else:
        unittest.main()
