"""Runs p2pkv-llama processes and talks to them; cuts prompts out of real text."""

import json
import os
import queue
import subprocess
import threading
import time

ANSWER_TIMEOUT_S = 300
# Several engines share the processor here: threads that wait for one another must not spin while others have work.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


class Engine:
    """One p2pkv-llama under control. Notes since the last command are kept in `notes`."""

    def __init__(self, program, model, name, *flags, environment=()):
        self.name = name
        self.notes = []
        self.process = subprocess.Popen(
            [program, "--model", model, "--control", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**ENVIRONMENT, **dict(environment)},
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ready = self.answer("ready")
        self.id = self.ready.get("id")

    def _read(self):
        for line in self.process.stdout:
            self._lines.put((time.monotonic(), json.loads(line)))
        self._lines.put((time.monotonic(), {"event": "ended"}))

    def send(self, command):
        self.notes.clear()
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self, *wanted):
        """The next line whose event is one of `wanted`; an error or the end of the process raises."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            _, line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            if line["event"] in wanted:
                return line
            if line["event"] == "note":
                self.notes.append(line["text"])
            elif line["event"] in ("error", "ended"):
                raise RuntimeError(f"{self.name}: {line}")

    def run(self, prompt, predict=None):
        self.start(prompt, predict)
        return self.answer("done")

    def start(self, prompt, predict=None):
        words = ["run", prompt.path]
        if prompt.tokens:
            words.append(f"tokens={prompt.tokens}")
        if predict is not None:
            words.append(f"predict={predict}")
        self.send(" ".join(words))

    def count(self, path):
        self.send(f"count {path}")
        return self.answer("done")["prompt_tokens"]

    def forget(self):
        self.send("forget")
        return self.answer("done")["kept"]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.write("quit\n")
                self.process.stdin.close()
                self.process.wait(timeout=30)
            except (OSError, subprocess.TimeoutExpired):
                self.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Prompt:
    """A file, of which the first `tokens` tokens are used (0 = all)."""

    def __init__(self, path, tokens=0):
        self.path = path
        self.tokens = tokens


class Corpus:
    """Prompts cut out of the English documentation that comes with llama.cpp."""

    def __init__(self, source_dir, work_dir):
        self._work_dir = work_dir
        self._files = 0
        documents = [os.path.join(source_dir, name) for name in ("README.md", "CONTRIBUTING.md")]
        docs = os.path.join(source_dir, "docs")
        documents += sorted(os.path.join(docs, name) for name in os.listdir(docs) if name.endswith(".md"))
        self.text = ""
        for path in documents:
            with open(path, encoding="utf-8") as file:
                self.text += file.read() + "\n"

    def write(self, text):
        self._files += 1
        path = os.path.join(self._work_dir, f"prompt-{self._files}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def passage(self, start, length):
        """Text from the first line after character `start`; different starts give different prefixes."""
        start = self.text.index("\n", start % (len(self.text) - length - 2000)) + 1
        return self.text[start : start + length]

    def prompt(self, number, tokens):
        return Prompt(self.write(self.passage(number * 7001, tokens * 6)), tokens)
