#!/usr/bin/env python3
"""Writes the seeds of the corpora: what vLLM really sent (tests/data/wire.tsv), texts of every role, and scripts of calls
from a fixed sequence of numbers. The same files each time."""

import pathlib
import random

HERE = pathlib.Path(__file__).resolve().parent
CURRENT, LEGACY, UNKNOWN, TIGHT = 0, 1, 2, 4

PARAMS = [
    "",
    "null",
    "{}",
    '{"remote_decoder":{"kv_request_id":"req-1"}}',
    '{"remote_prefiller":{"kv_request_id":"req-1","remote_host":"10.0.0.1","remote_port":7000}}',
    '{"remote_kv_source":{"kv_request_id":"req-1","remote_host":"::1","remote_port":"7000"}}',
    '{"remote_decoder":{"kv_request_id":"a"},"remote_kv_source":{"kv_request_id":"b","remote_host":"h","remote_port":1}}',
    '{"remote_decoder":{},"other":[1,2.5e-3,"\\u00e9\\ud83d\\ude00"]}',
    '{"decode":{"kv_request_id":"a"}}',
    '{"prefill":{"kv_request_id":"a","remote_host":"h","remote_port":65536}}',
    '{"remote_prefiller":null,"remote_decoder":{"kv_request_id":7}}',
    '{"z":1,"a":{"y":[true,false,null],"b":1e400,"c":-0.0,"d":12345678901234567890,"e":1E+5,"f":0.1}}',
]

# What bodies/frames.rs makes of them: arm a load (whose, which blocks), send a frame (connection, load, blocks less one,
# the blocks, fill), begin one, send so many bytes of it, disarm a load.
OURS, THEIRS = bytes([0, 1]), bytes([0, 0])
ALL, FRAME, BEGIN, GO_ON, DISARM = b"\xff", bytes([3, 0, 0]), bytes([5, 0, 0]), bytes([6, 0]), bytes([2, 0])
FRAMES = {
    "lands": OURS + ALL + FRAME + bytes([1, 4, 5, 0xAA]) + DISARM,
    "of-a-stranger": THEIRS + ALL + FRAME + bytes([0, 3, 0xBB]),
    "twice": OURS + ALL + 2 * (FRAME + bytes([0, 1, 0xCC])),
    "one-block-twice": OURS + ALL + FRAME + bytes([1, 6, 6, 0xCC]),
    "past-the-region": OURS + ALL + FRAME + bytes([1, 7, 8, 0xDD]),
    "not-of-the-load": OURS + b"\x01" + FRAME + bytes([0, 2, 0xEE]),
    "after-the-fence": OURS + ALL + DISARM + FRAME + bytes([0, 1, 0xEE]),
    "across-the-fence": OURS + ALL + BEGIN + bytes([1, 2, 3, 0xCC]) + GO_ON + b"\x30" + DISARM + GO_ON + b"\x60",
}

# Target, how many scripts, how long each is.
SCRIPTS = [("session", 16, 300), ("frames", 16, 200), ("capi", 16, 200)]


def seed(target: str, name: str, content: bytes) -> None:
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(content)


def main() -> None:
    for line in (HERE.parent / "tests/data/wire.tsv").read_text().splitlines():
        name, dialect, message = line.split("\t")
        known = CURRENT if dialect == "current" else LEGACY
        for choice in (known, UNKNOWN, known | TIGHT):
            seed("codec", f"{name}-{dialect}-{choice}", bytes([choice]) + bytes.fromhex(message))
    for number, text in enumerate(PARAMS):
        seed("params", f"{number:02}", text.encode())
    for name, script in FRAMES.items():
        seed("frames", name, b"\0" + script)
    for target, count, length in SCRIPTS:
        for number in range(count):
            seed(target, f"{number:02}", random.Random(f"{target} {number}").randbytes(length))


if __name__ == "__main__":
    main()
