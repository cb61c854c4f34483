"""What the example must show, one function each: returns rows for the report, raises when something is wrong."""

import copy
import os
import random
import shutil
import statistics
import time

from driver import Engine, Prompt

PROMPT_LENGTHS = [50, 64, 65, 100, 128, 200, 300, 400, 512, 600, 777, 1000, 1280, 1500, 2000, 2500, 3000, 4000]


PEER_REST_S = 5.1  # how long the program leaves a peer alone that has failed


class Wrong(AssertionError):
    """The example does not do what it promises."""


class Stage:
    """Where the scenarios find the program, the model and prompts."""

    def __init__(self, program, model, corpus, work_dir):
        self.program = program
        self.model = model
        self.corpus = corpus
        self.work_dir = work_dir
        self.environment = {}

    def apart(self):
        """The same, with engines that pull over TCP as from other hosts: long enough to be caught in the middle."""
        other = copy.copy(self)
        other.environment = {"P2PKV_SAME_HOST": "off"}
        return other

    def engine(self, name, *flags, model=None):
        return Engine(self.program, model or self.model, name, *flags, environment=self.environment)

    def producer(self, *flags):
        """Evaluates, publishes and generates: one process doing both, whose output is the reference."""
        return self.engine("prefill", "--prefill", "--decode", *flags)

    def decoder(self, name, *peers, flags=()):
        return self.engine(name, "--decode", *(word for peer in peers for word in ("--peer", peer)), *flags)


def require(condition, what):
    if not condition:
        raise Wrong(what)


def same_tokens(reference, result, who):
    require(result["tokens"] == reference["tokens"], f"{who}: {result['text']!r} instead of {reference['text']!r}")


def shared_prefix_pair(stage, producer, prefix_tokens):
    """Two prompts that are equal in at least their first `prefix_tokens` tokens, and differ after."""
    length = prefix_tokens * 2
    while producer.count(stage.corpus.write(stage.corpus.passage(11, length))) < prefix_tokens + 8:
        length += 200
    prefix = stage.corpus.passage(11, length)
    return [
        Prompt(stage.corpus.write(prefix + stage.corpus.passage(start, 2500)), prefix_tokens + 400)
        for start in (90001, 150001)
    ]


def equal_outputs(stage, lengths, prefix_tokens):
    """prefill -> decode -> a third process that knows only the second."""
    rows = []
    with stage.producer() as producer, stage.decoder("decode", producer.id) as second, stage.decoder(
        "third", second.id
    ) as third:
        prompts = [stage.corpus.prompt(number, tokens) for number, tokens in enumerate(lengths)]
        prompts += shared_prefix_pair(stage, producer, prefix_tokens)
        for number, prompt in enumerate(prompts):
            reference = producer.run(prompt)
            pulled = second.run(prompt)
            again = third.run(prompt)
            for result, who in ((pulled, "decode"), (again, "third")):
                same_tokens(reference, result, f"prompt {number} of {prompt.tokens} tokens, {who}")
                require(
                    result["held_chunks"] + result["pulled_chunks"] == result["chunks"],
                    f"prompt {number}: {who} had {result['chunks']} chunks to get, got {result}",
                )
            require(not pulled["chunks"] or again["peer"] == second.id, "the third process pulled from the second")
            rows.append((prompt.tokens, reference, pulled, again))
            print(
                f"  {prompt.tokens:5} tokens: {pulled['held_chunks']} chunks held, {pulled['pulled_chunks']} pulled, "
                f"{pulled['evaluated_tokens']} tokens evaluated; outputs equal",
                flush=True,
            )
        require(rows[-1][2]["held_chunks"] >= prefix_tokens // 64, "the shared prefix was not reused")
        require(rows[-1][2]["pulled_chunks"] > 0, "what was missing was not pulled")
    return rows


def several_blocks(stage, lengths):
    """States that span several blocks: small blocks for chunks, and checkpoints of the whole state."""
    ways = [
        ("chunks, blocks of 256 KiB", ("--block-len", "262144", "--region-blocks", "640"), lambda tokens: tokens // 64),
        ("whole state each 512 tokens, blocks of 1 MiB", ("--mode", "whole"), lambda tokens: tokens // 512 * 8),
    ]
    rows = []
    for way, flags, chunks_to_pull in ways:
        with stage.producer(*flags) as producer, stage.decoder("decode", producer.id, flags=flags) as second:
            for number, tokens in enumerate(lengths):
                prompt = stage.corpus.prompt(40 + number, tokens)
                reference = producer.run(prompt)
                pulled = second.run(prompt)
                same_tokens(reference, pulled, f"{way}, {tokens} tokens")
                require(pulled["pulled_chunks"] == chunks_to_pull(tokens), f"{way}, {tokens} tokens: {pulled}")
                rows.append((way, tokens, pulled))
                print(
                    f"  {way}: {tokens} tokens: {pulled['pulled_chunks']} chunks pulled "
                    f"in {pulled['pull_bytes'] / 1e6:.1f} MB; "
                    "outputs equal",
                    flush=True,
                )
    return rows


def eviction_while_pulling(stage, tokens, prompts):
    """The prefiller's region holds one prompt, so that it gives up the blocks of one prompt for the next while the
    decoder pulls them. Whatever the decoder still gets, its output is right."""
    room = tokens // 64
    chance = random.Random(2)
    rows = []
    with stage.producer("--region-blocks", str(room)) as producer, stage.decoder("decode", producer.id) as decoder:
        following = stage.corpus.prompt(30, tokens)
        reference = producer.run(following)
        for number in range(prompts):
            prompt, expected = following, reference
            following = stage.corpus.prompt(31 + number, tokens)
            producer.start(following)
            time.sleep(chance.uniform(0, reference["evaluate_ms"] * 0.8) / 1e3)
            result = decoder.run(prompt)
            reference = producer.answer("done")
            same_tokens(expected, result, f"eviction, prompt {number}")
            rows.append((number + 1, result))
            print(
                f"  {result['pulled_chunks']} of {result['chunks']} chunks pulled while the next prompt took their "
                "blocks; output equal",
                flush=True,
            )
    return rows


def fan_out(stage, tokens, decoders=3):
    """Several decoders pull the same prompt at once."""
    prompt = stage.corpus.prompt(50, tokens)
    with stage.producer() as producer:
        reference = producer.run(prompt)
        engines = [stage.decoder(f"decode {i + 1}", producer.id) for i in range(decoders)]
        try:
            for engine in engines:
                engine.start(prompt)
            results = [engine.answer("done") for engine in engines]
        finally:
            for engine in engines:
                engine.close()
    for engine, result in zip(engines, results):
        same_tokens(reference, result, engine.name)
        require(result["pulled_chunks"] == result["chunks"], f"{engine.name} pulled {result}")
        print(
            f"  {engine.name}: {result['pull_bytes'] / 1e6:.1f} MB in {result['load_ms']:.1f} ms; output equal",
            flush=True,
        )
    return [(engine.name, result) for engine, result in zip(engines, results)]


def killed_prefiller(stage, tokens, times, seed=1):
    """kill -9 of the prefiller at a random point of a pull: the right tokens, soon. The decoder lives through all of
    it; each new prefiller has the address of the one before."""
    stage = stage.apart()
    prompt = stage.corpus.prompt(60, tokens)
    chance = random.Random(seed)
    rows = []
    with stage.producer() as producer:
        reference = producer.run(prompt)
        address = producer.id
        with stage.decoder("decode", address) as warm_up:
            usual_ms = warm_up.run(prompt)["load_ms"]
        producer.kill()
    with stage.decoder("decode", address) as decoder:
        for _ in range(3 * times):
            if len(rows) == times:
                break
            with stage.producer("--port", address.rpartition(":")[2]) as producer:
                producer.run(prompt, predict=0)
                row = kill_during_pull(decoder, producer, prompt, chance.uniform(0, usual_ms), reference)
            if row:
                rows.append(row)
    require(len(rows) == times, f"only {len(rows)} of {times} kills hit a pull")
    return rows


def kill_during_pull(decoder, producer, prompt, delay_ms, reference):
    """Nothing when the pull was complete before the signal came."""
    decoder.forget()
    decoder.start(prompt)
    pulling(decoder)
    time.sleep(delay_ms / 1e3)
    killed_at = time.monotonic()
    producer.kill()
    result = decoder.answer("done")
    total_ms = (time.monotonic() - killed_at) * 1e3
    same_tokens(reference, result, f"killed after {delay_ms:.1f} ms")
    if result["load_failures"] == 0:
        print(f"  killed {delay_ms:.1f} ms into the pull: it was already complete; once more", flush=True)
        return None
    print(
        f"  killed {delay_ms:.1f} ms into the pull: known {result['failed_ms']:.1f} ms after its begin, right tokens",
        flush=True,
    )
    time.sleep(PEER_REST_S)
    return delay_ms, result["failed_ms"], result["evaluate_ms"], total_ms, decoder.notes[-1]


def pulling(decoder):
    """Waits for the beginning of a pull."""
    line = decoder.answer("pulling", "done")
    require(line["event"] == "pulling", f"nothing was pulled: {line}")


def unusable_peers(stage, tokens, everything=True):
    """Peer missing, other block size, chunk size or model: said, and evaluated here."""
    prompt = stage.corpus.prompt(70, tokens)
    with stage.producer() as producer:
        reference = producer.run(prompt)
        rows = [unusable_peer(stage, "nobody listens there", "127.0.0.1:9", prompt, reference)]
        if everything:
            rows.append(
                unusable_peer(stage, "other block size", producer.id, prompt, reference, "--block-len", "4194304")
            )
            # Chunks are also what is evaluated at a time, so the reference is one with the same chunks.
            other_chunks = ("--chunk-tokens", "128")
            with stage.engine("alone", "--decode", *other_chunks) as alone:
                reference_128 = alone.run(prompt)
            same_block_len = ("--block-len", str(producer.ready["block_len"]))  # else that is what is refused
            rows.append(
                unusable_peer(
                    stage, "other chunk size", producer.id, prompt, reference_128, *other_chunks, *same_block_len
                )
            )
            other = os.path.join(stage.work_dir, "other-model.gguf")
            shutil.copyfile(stage.model, other)
            with open(other, "ab") as file:
                file.write(b"\0")
            rows.append(unusable_peer(stage, "other model file", producer.id, prompt, reference, model=other))
            os.unlink(other)
    return rows


def unusable_peer(stage, case, peer, prompt, reference, *flags, model=None):
    with stage.engine(case, "--decode", "--peer", peer, *flags, model=model) as decoder:
        result = decoder.run(prompt)
    require(result["pulled_chunks"] == 0, f"{case}: {result}")
    require(decoder.notes, f"{case}: nothing was said")
    same_tokens(reference, result, case)
    print(f"  {case}: {decoder.notes[0]}", flush=True)
    return case, result["lookup_ms"], decoder.notes[0]


def first_token_times(stage, lengths, repeats=5):
    """Time to the first token with a pull and without, medians."""
    rows = []
    with stage.producer() as producer, stage.decoder("decode", producer.id) as with_pull, stage.decoder(
        "alone"
    ) as without:
        for number, tokens in enumerate(lengths):
            prompt = stage.corpus.prompt(80 + number, tokens)
            producer.run(prompt)
            pulled, evaluated = [], []
            for _ in range(repeats):
                for engine, results in ((without, evaluated), (with_pull, pulled)):
                    engine.forget()
                    results.append(engine.run(prompt))
            for result in pulled:
                same_tokens(evaluated[0], result, f"{tokens} tokens")
                require(result["pulled_chunks"] == result["chunks"], f"{tokens} tokens: {result}")
            row = {
                "tokens": tokens,
                "bytes": pulled[0]["pull_bytes"],
                "without_ms": median(evaluated, "first_token_ms"),
                "evaluate_ms": median(evaluated, "evaluate_ms"),
            }
            for name in ("first_token_ms", "lookup_ms", "load_ms", "restore_ms"):
                row[name] = median(pulled, name)
            row["gb_per_s"] = row["bytes"] / row["load_ms"] / 1e6
            row["pull_and_restore_ms"] = statistics.median(
                r["lookup_ms"] + r["load_ms"] + r["restore_ms"] for r in pulled
            )
            rows.append(row)
            print(
                f"  {tokens:5} tokens: first token after {row['first_token_ms']:.0f} ms with a pull, "
                f"{row['without_ms']:.0f} ms without; "
                f"pull and restore {row['pull_and_restore_ms']:.1f} ms, {row['gb_per_s']:.2f} GB/s",
                flush=True,
            )
    return rows


def median(results, name):
    return statistics.median(result[name] for result in results)
