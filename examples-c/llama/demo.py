#!/usr/bin/env python3
"""Runs the scenarios of the llama.cpp example. Exits 0 when all of them hold.

demo.py --program P --model M --source LLAMA_CPP_SOURCE [--docs DIR | --small]
"""

import argparse
import os
import sys
import tempfile

import report
import scenarios
from driver import Corpus


def small(stage):
    print("equal outputs, three processes", flush=True)
    scenarios.equal_outputs(stage, [50, 300], 400)
    print("prefiller killed", flush=True)
    scenarios.killed_prefiller(stage, 700, 1)
    print("peers that cannot be used", flush=True)
    scenarios.unusable_peers(stage, 200, everything=False)


def full(stage, docs):
    results = {}
    steps = [
        ("first_token", "time to first token", lambda: scenarios.first_token_times(stage, [128, 512, 2048, 4000])),
        ("equal", "equal outputs, three processes", lambda: scenarios.equal_outputs(stage, scenarios.PROMPT_LENGTHS, 2000)),
        ("whole", "whole-state checkpoints", lambda: scenarios.whole_state(stage, [500, 700, 1500, 4000])),
        ("fan_out", "one prefiller, three decoders", lambda: scenarios.fan_out(stage, 4000)),
        ("killed", "prefiller killed in the middle of a pull", lambda: scenarios.killed_prefiller(stage, 2048, 20)),
        ("unusable", "peers that cannot be used", lambda: scenarios.unusable_peers(stage, 600)),
    ]
    for name, title, step in steps:
        print(title, flush=True)
        results[name] = step()
    report.write(docs, results)
    last = results["first_token"][-1]
    faster = last["evaluate_ms"] / last["pull_and_restore_ms"]
    scenarios.require(faster >= 50, f"pull and restore of {last['tokens']} tokens is {faster:.0f}x faster than evaluating, 50x is promised")
    print(f"wrote {os.path.join(docs, 'llama-results.md')} and its chart", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True, help="llama.cpp's source folder, whose documentation gives the prompts")
    parser.add_argument("--docs", default="docs")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work_dir:
        stage = scenarios.Stage(os.path.abspath(arguments.program), arguments.model, Corpus(arguments.source, work_dir), work_dir)
        try:
            small(stage) if arguments.small else full(stage, arguments.docs)
        except scenarios.Wrong as wrong:
            print(f"FAILED: {wrong}", file=sys.stderr)
            return 1
    print("llama.cpp example: all scenarios hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
