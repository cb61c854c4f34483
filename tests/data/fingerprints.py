"""Prints fingerprints.tsv: configurations and what Python's json and hashlib make of them.

Columns, each JSON text as a JSON string so that a line stays a line: the configuration, its canonical form,
its fingerprint. `python3 tests/data/fingerprints.py > tests/data/fingerprints.tsv`
"""

import hashlib
import json

DEFAULTS = {
    "blocks_per_file": 1, "dcp_size": 1, "dtype": "bfloat16", "inference_engine": "vllm",
    "kv_cache_groups": [{"layer_names": ["layers.0"], "tokens_per_block": 16}],
    "model_name": "test/model", "pcp_size": 1, "pp_size": 1, "tokens_per_hash": 16, "tp_size": 1,
}

# What vLLM itself computed for these, to prove that this script hashes as vLLM does.
VLLM = [
    ({}, "cd0d4323bd6e1bb3"),
    ({"blocks_per_file": 4}, "dca4da46441996aa"),
    ({"parallel_agnostic": False, "tp_size": 2}, "4eb8640f4320e2c0"),
    ({"replicated_layout": True}, "0ca11496877d45b4"),
    ({"canonical_format": "v1-nhd"}, "7d6ac12fd3123ccc"),
    ({"model_name": "mod\u00e8le/x"}, "f5542e86670da830"),
]

NUMBERS = """
0 -0 1 -1 9007199254740993 18446744073709551615 18446744073709551616 -9223372036854775809
123456789012345678901234567890123456789012345678901234567890 0.0 -0.0 1.0 1.50 0.1 0.2 0.30000000000000004
100.0 1E5 1e5 1e15 1e16 1E+16 1e17 9999999999999998.0 9999999999999999.0 12345678901234567.0 1e22 1e23
123456789.123456789 0.001 0.0001 0.00012345 0.00001 1e-5 1.5e-7 -2.5E-10 1e100 1e-100 1e308 -1.7976931348623157e308
2.2250738585072014e-308 5e-324 4.9e-324 1e-400 0e10 0.5e1 3.141592653589793238 2.718281828459045
87855245110624.117695164 2.9802322387695312e-08 811212085039910.2 -1929377421321310.2 5.684341886080802e-14
0.00010000000000000002 0.00009999999999999999 4503599627370497.5 1234567890123456.0
""".split()

TEXTS = [
    ' { "b" : 1 ,\n\t"a" : [ 1 , 2 , { "z" : null , "y" : [ ] } ] , "c" : { } } ',
    '{"a":1,"a":2}',
    '{"a":1,"b":0,"a":{"c":1,"c":[true,false,null]}}',
    '{"a":1,"\\u0061":2}',
    '{"Z":1,"a":2,"_":3,"A":4,"":5,"aa":6,"a.b":7}',
    '{"\uffff":1,"\U0001f600":2,"\ue000":3,"z":4,"\u00e9":5}',
    '{"\\uffff":1,"\\ud83d\\ude00":2,"\\ue000":3}',
    '{"s":"\\"\\\\\\/\\b\\f\\n\\r\\t"}',
    '{"s":"\\u0000\\u0001\\u001f\\u0020\\u007e\\u007f\\u0080"}',
    '{"s":"\x7f\u0080\u00e9\u20ac\U0001f600\U0010ffff"}',
    '{"s":"\\u00E9\\u20AC\\uD83D\\uDE00"}',
    '{"s":"</script>&\u2028\u2029"}',
    '{"a":[[[[[[[[[[]]]]]]]]]]}',
    '{"a":[0,-0,0.0,-0.0,[1e3,1000]],"b":"1e3"}',
    '{"a":{}}', '{"":""}', '{"a":null}', '{"a":[{},[],""]}',
]

EMPTY = ["", "null", "{}", " { } ", " null\n"]


def canonical(text):
    value = json.loads(text) if text else None
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""


def fingerprint(text):
    form = canonical(text)
    return form and hashlib.sha256(form.encode()).hexdigest()[:16]


def main():
    texts = []
    for change, expected in VLLM:
        text = json.dumps({**DEFAULTS, **change}, ensure_ascii=False)
        assert fingerprint(text) == expected, text
        texts.append(text)
    texts += TEXTS + EMPTY
    texts += ['{"n":%s}' % number for number in NUMBERS]
    for text in texts:
        print(json.dumps(text), json.dumps(canonical(text)), fingerprint(text), sep="\t")


main()
