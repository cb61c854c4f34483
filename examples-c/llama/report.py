"""Writes what was measured: docs/llama-results.md, docs/llama-ttft.svg and the table in README.md."""

import os
import platform


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def machine():
    cpu = "an unnamed processor"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return (
        f"{os.cpu_count()} cores of {cpu}, {platform.system()} {platform.machine()}; all processes on this one machine"
    )


def busy(results, name):
    """What else the machine had to do when this was measured: times under load say little."""
    load = results.get("load_averages", {}).get(name)
    return "" if load is None else f"Load average of the machine at the end of this step: {load:.1f}.\n"


def first_token_table(rows):
    return table(
        [
            "prompt tokens",
            "first token, evaluated here",
            "first token, pulled",
            "times faster",
            "bytes pulled",
            "look up / pull / restore",
            "GB/s of the pull",
            "evaluate ÷ (look up + pull + restore)",
        ],
        [
            (
                row["tokens"],
                f"{row['without_ms']:.0f} ms",
                f"{row['first_token_ms']:.0f} ms",
                f"{row['without_ms'] / row['first_token_ms']:.1f}×",
                f"{row['bytes'] / 1e6:.1f} MB",
                f"{row['lookup_ms']:.1f} / {row['load_ms']:.1f} / {row['restore_ms']:.1f} ms",
                f"{row['gb_per_s']:.2f}",
                f"{row['evaluate_ms'] / row['pull_and_restore_ms']:.0f}×",
            )
            for row in rows
        ],
    )


def results_page(results):
    parts = [
        "# llama.cpp over libp2pkv: what was measured\n",
        "Written by `make llama`. What is done: [engine-guide.md](engine-guide.md); how: `examples-c/llama/`.\n",
        f"Gemma 3 270M (Q4_K_M), 2 threads, greedy, chunks of 64 tokens; {machine()}.\n",
        "## Time to first token\n",
        "Medians of 5; the pulling process had nothing of the prompt.\n",
        busy(results, "first_token"),
        first_token_table(results["first_token"]),
        "![time to first token](llama-ttft.svg)\n",
        "## Equal outputs\n",
        "Greedy output (32 tokens) of the prefiller, of a decoder that pulled from it, and of a third process that "
        "pulled from the decoder. "
        "The last two prompts share a prefix of 2000 tokens.\n",
        table(
            [
                "prompt tokens",
                "chunks",
                "decoder: held / pulled",
                "MB",
                "evaluated tokens",
                "third: held / pulled",
                "outputs",
            ],
            [
                (
                    tokens,
                    pulled["chunks"],
                    f"{pulled['held_chunks']} / {pulled['pulled_chunks']}",
                    f"{pulled['pull_bytes'] / 1e6:.1f}",
                    pulled["evaluated_tokens"],
                    f"{again['held_chunks']} / {again['pulled_chunks']}",
                    "equal",
                )
                for tokens, _, pulled, again in results["equal"]
            ],
        ),
        "## States that span several blocks\n",
        table(
            ["way", "prompt tokens", "chunks pulled", "MB", "evaluated tokens", "output"],
            [
                (
                    way,
                    tokens,
                    pulled["pulled_chunks"],
                    f"{pulled['pull_bytes'] / 1e6:.1f}",
                    pulled["evaluated_tokens"],
                    "equal",
                )
                for way, tokens, pulled in results["several_blocks"]
            ],
        ),
        "## Blocks given up while they are being pulled\n",
        "A prefiller whose region holds one prompt evaluates the next while a decoder pulls the last.\n",
        table(
            ["prompt", "chunks", "pulled", "load failures", "output"],
            [
                (number, r["chunks"], r["pulled_chunks"], r["load_failures"], "equal")
                for number, r in results["eviction"]
            ],
        ),
        "## One prefiller, three decoders at once\n",
        busy(results, "fan_out"),
        table(
            ["decoder", "MB", "look up", "pull", "first token", "output"],
            [
                (
                    name,
                    f"{r['pull_bytes'] / 1e6:.1f}",
                    f"{r['lookup_ms']:.1f} ms",
                    f"{r['load_ms']:.1f} ms",
                    f"{r['first_token_ms']:.0f} ms",
                    "equal",
                )
                for name, r in results["fan_out"]
            ],
        ),
        "## Prefiller killed (SIGKILL) in the middle of a pull\n",
        busy(results, "killed"),
        table(
            ["killed after", "load failed after", "then evaluated in", "kill to last token", "output"],
            [
                (f"{delay:.1f} ms", f"{failed:.1f} ms", f"{evaluate:.0f} ms", f"{total:.0f} ms", "equal")
                for delay, failed, evaluate, total, _ in results["killed"]
            ],
        ),
        f"What the decoder said, the last time: “{results['killed'][-1][4]}”\n",
        "## Peers that cannot be used\n",
        "The decoder evaluated the prompt itself; outputs equal.\n",
        table(
            ["peer", "looked up for", "what the decoder said"],
            [(name, f"{lookup:.1f} ms", said) for name, lookup, said in results["unusable"]],
        ),
    ]
    return "\n".join(part for part in parts if part)


def bar(x, y, width, color, label):
    return (
        f'<rect x="{x}" y="{y}" width="{width:.1f}" height="16" fill="{color}"/>'
        f'<text x="{x + width + 6:.1f}" y="{y + 13}">{label}</text>'
    )


def first_token_chart(rows):
    left, full, top = 110, 480, 56
    most = max(row["without_ms"] for row in rows)
    height = top + 52 * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + full + 110}" height="{height}"',
        'font-family="sans-serif" font-size="13" fill="#222">',
        f'<rect width="{left + full + 110}" height="{height}" fill="#fff"/>',
        '<text x="16" y="22" font-size="15" font-weight="bold">Time to first token, llama.cpp with Gemma 3 270M</text>',
        f'<rect x="16" y="32" width="12" height="12" fill="#9aa7b5"/><text x="34" y="43">prompt evaluated here</text>',
        '<rect x="186" y="32" width="12" height="12" fill="#1f7a54"/>',
        '<text x="204" y="43">KV pulled from a peer with libp2pkv</text>',
    ]
    for number, row in enumerate(rows):
        y = top + 52 * number
        parts.append(f'<text x="{left - 10}" y="{y + 24}" text-anchor="end">{row["tokens"]} tokens</text>')
        parts.append(bar(left, y, full * row["without_ms"] / most, "#9aa7b5", f"{row['without_ms']:.0f} ms"))
        parts.append(
            bar(left, y + 19, full * row["first_token_ms"] / most, "#1f7a54", f"{row['first_token_ms']:.0f} ms")
        )
    return "\n".join(parts + ["</svg>"]) + "\n"


def replace_between(path, begin, end, text):
    """Puts `text` between two marker lines of a file, if it has them."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if begin not in page or end not in page:
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(page.partition(begin)[0] + begin + "\n" + text + end + page.partition(end)[2])


def write(docs, results):
    with open(os.path.join(docs, "llama-results.md"), "w", encoding="utf-8") as file:
        file.write(results_page(results))
    with open(os.path.join(docs, "llama-ttft.svg"), "w", encoding="utf-8") as file:
        file.write(first_token_chart(results["first_token"]))
    replace_between(
        os.path.join(docs, "..", "README.md"),
        "<!-- llama-ttft -->",
        "<!-- /llama-ttft -->",
        first_token_table(results["first_token"]),
    )
