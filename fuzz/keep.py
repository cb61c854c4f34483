#!/usr/bin/env python3
"""Chooses which inputs to commit: keep.py CONTROL_FILE CORPUS. libFuzzer goes through the inputs of a merge from the
shortest on and notes (-merge_control_file) which edges each one is the first to reach. Those that are first at most
edges stay, and so do the seeds."""

import pathlib
import sys

# Of each target: what a repository can bear.
MOST_INPUTS = 64


def best(control: list[str]) -> list[pathlib.Path]:
    """The file: two counts, the names, then lines of a kind, a name's number, and for COV the edges."""
    count = int(control[0])
    names, notes = control[2 : 2 + count], [line.split() for line in control[2 + count :]]
    edges = {names[int(note[1])]: len(note) - 2 for note in notes if note[0] == "COV"}
    ranked = sorted((name for name in edges if edges[name]), key=lambda name: (-edges[name], name))
    return [pathlib.Path(name) for name in ranked[:MOST_INPUTS]]


def main() -> None:
    control, corpus = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    kept = {path.name: path.read_bytes() for path in best(control.read_text().splitlines())}
    for old in corpus.iterdir():
        if not old.name.startswith("seed-"):
            old.unlink()
    for name, content in kept.items():
        (corpus / name).write_bytes(content)
    size = sum(map(len, kept.values()))
    print(f"{corpus}: {len(kept)} inputs, {size} bytes")


if __name__ == "__main__":
    main()
