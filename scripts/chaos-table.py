#!/usr/bin/env python3
"""Turns the lines that the long chaos run wrote into the table of docs/reliability.md.

usage: chaos-table.py REPORT [DOCUMENT]; without DOCUMENT the table is printed.
"""

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- chaos table: begin -->", "<!-- chaos table: end -->"
HEAD = (
    "| fault | how injected | how often | jobs | wrong bytes | lost / double results | leaked fds, threads; memory "
    "| longest to a result | past its deadline at most | longest call |",
    "|---|---|---:|---:|---:|---:|---|---:|---:|---:|",
)


def span(milliseconds: "float | None") -> str:
    if milliseconds is None:
        return "–"
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.1f} ms"


def row(case: dict) -> str:
    grown = case["grown_kib"] / 1024
    cells = (
        case["fault"],
        case["how"],
        f"{case['injections']:,}",
        f"{case['jobs']:,}",
        str(case["wrong"]),
        f"{case['lost']} / {case['double']}",
        f"{case['leaked_fds']}, {case['leaked_threads']}; +{grown:.1f} MiB",
        span(case["longest_ms"]),
        span(case["late_ms"]),
        span(case["longest_call_ms"] or None),
    )
    return "| " + " | ".join(cells) + " |"


def total(cases: "list[dict]") -> str:
    sums = {name: sum(case[name] for case in cases) for name in ("injections", "jobs", "wrong", "lost", "double")}
    late = max((case["late_ms"] for case in cases if case["late_ms"] is not None), default=None)
    return (
        f"{len(cases)} cases, {sums['injections']:,} injections, {sums['jobs']:,} jobs: {sums['wrong']} wrong bytes, "
        f"{sums['lost']} lost and {sums['double']} double results; at most {span(late)} past a deadline."
    )


def main() -> None:
    report, *document = sys.argv[1:]
    lines = map(json.loads, Path(report).read_text().splitlines())
    # A case that was run again counts by its last run.
    cases = list({(case["fault"], case["how"]): case for case in lines}.values())
    table = "\n".join((*HEAD, *map(row, cases), "", total(cases)))
    if not document:
        print(table)
        return
    path = Path(document[0])
    before, rest = path.read_text().split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()
