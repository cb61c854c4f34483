"""How a rival is driven: a line asks, a line answers. `ok NUMBER...` or `error WHY`; the first line says that it is ready."""

from __future__ import annotations

import os
import sys
import traceback


def claim_stdout():
    """Keeps the pipe for answers alone: libraries print what they like, to the standard error."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return pipe


def serve(start) -> None:
    """`start()` gives commands by name; each takes the words of its line and gives a list of numbers."""
    out = claim_stdout()

    def say(answer) -> None:
        try:
            out.write("ok " + " ".join(map(str, answer())) + "\n")
        except Exception as error:
            traceback.print_exc()
            out.write(f"error {type(error).__name__}: {error}".replace("\n", " ") + "\n")

    commands = {}

    def begin():
        commands.update(start())
        return []

    say(begin)
    for line in sys.stdin:
        command, *words = line.split()
        say(lambda: commands[command](*words))
