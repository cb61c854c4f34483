#!/usr/bin/env python3
"""Runs the scenarios of the llama.cpp example. Exits 0 when all of them hold.

demo.py --program P --model M --source LLAMA_CPP_SOURCE [--docs DIR] [--only STEP ... | --small]
"""

import argparse
import json
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


STEPS = {
    "first_token": ("time to first token", lambda stage: scenarios.first_token_times(stage, [128, 512, 2048, 4000])),
    "equal": (
        "equal outputs, three processes",
        lambda stage: scenarios.equal_outputs(stage, scenarios.PROMPT_LENGTHS, 2000),
    ),
    "several_blocks": (
        "states that span several blocks",
        lambda stage: scenarios.several_blocks(stage, [500, 700, 1500, 4000]),
    ),
    "eviction": (
        "blocks given up while they are being pulled",
        lambda stage: scenarios.eviction_while_pulling(stage, 640, 8),
    ),
    "fan_out": ("one prefiller, three decoders", lambda stage: scenarios.fan_out(stage, 4000)),
    "killed": ("prefiller killed in the middle of a pull", lambda stage: scenarios.killed_prefiller(stage, 1024, 20)),
    "unusable": ("peers that cannot be used", lambda stage: scenarios.unusable_peers(stage, 600)),
}


def full(stage, docs, only, results_path):
    """Runs the steps, all or only some, and writes the report once there is a result of each."""
    results = {}
    if only and os.path.exists(results_path):
        with open(results_path, encoding="utf-8") as file:
            results = json.load(file)
    for name in only or STEPS:
        title, step = STEPS[name]
        print(title, flush=True)
        results[name] = step(stage)
        results.setdefault("load_averages", {})[name] = os.getloadavg()[0]
        with open(results_path, "w", encoding="utf-8") as file:
            json.dump(results, file)
    missing = [name for name in STEPS if name not in results]
    if missing:
        print(f"no report without: {' '.join(missing)}")
        return
    report.write(docs, results)
    print(f"wrote {os.path.join(docs, 'llama-results.md')} and its chart", flush=True)
    last = results["first_token"][-1]
    faster = last["evaluate_ms"] / last["pull_and_restore_ms"]
    scenarios.require(
        faster >= 50,
        f"pull and restore of {last['tokens']} tokens is {faster:.0f}x faster than evaluating, 50x is promised",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--source", required=True, help="llama.cpp's source folder, whose documentation gives the prompts"
    )
    parser.add_argument("--docs", default="docs")
    parser.add_argument("--small", action="store_true", help="a short form of some scenarios, no report")
    parser.add_argument(
        "--only", nargs="+", choices=STEPS, metavar="STEP", help="measure these anew: " + " ".join(STEPS)
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work_dir:
        stage = scenarios.Stage(
            os.path.abspath(arguments.program), arguments.model, Corpus(arguments.source, work_dir), work_dir
        )
        try:
            if arguments.small:
                small(stage)
            else:
                results_path = os.path.join(os.path.dirname(os.path.abspath(arguments.program)), "results.json")
                full(stage, arguments.docs, arguments.only, results_path)
        except scenarios.Wrong as wrong:
            print(f"FAILED: {wrong}", file=sys.stderr)
            return 1
    print("llama.cpp example: all scenarios hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
