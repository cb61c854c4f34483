"""Runs everything against real vLLM tiers: `python3 run.py [VERSION...] [-k CASE]`, by default one legacy and one current.

Needs the library (P2PKV_LIBRARY, or target/release) and access to PyPI the first time; see prepare.py.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys

import prepare

HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = ["0.26.0", "0.33.0"]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("versions", nargs="*", default=VERSIONS)
    arguments.add_argument("-k", dest="case", help="only cases with this in their name")
    chosen = arguments.parse_args()
    failed = []
    for version in chosen.versions:
        prepare.prepare(version)
        print(f"=== vLLM {version}", flush=True)
        command = [sys.executable, "-m", "unittest", "-v", "test_live"]
        if version == VERSIONS[-1]:
            command.append("test_fingerprints")
        command += ["-k", chosen.case] if chosen.case else []
        environment = {**os.environ, "P2PKV_VLLM_VERSION": version, "PYTHONDONTWRITEBYTECODE": "1"}
        if subprocess.run(command, cwd=HERE, env=environment).returncode != 0:
            failed.append(version)
    print("failed: " + ", ".join(failed) if failed else f"all passed: {', '.join(chosen.versions)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
