"""Constrained decoding beside its peers: PyPI's newest xgrammar and llguidance, one machine, one
thread, the same vocabulary and schemas, one engine at a time.

usage: peers.py --work DIR --schemas DIR --tokenizer tokenizer.json --tfctl PROGRAM
                [--suite DIR] [--engines ours,llguidance,xgrammar] [--limit N] [--seconds 60]
                [--minutes M] [--verdicts] [--json FILE]

--schemas: files {schema, tests: [{valid, data}]}. --suite: files of the JSON-Schema-Test-Suite
(lists of {schema, tests}); each test counts by itself. The peers are called in a loop, the engine
and its tokenizer made once, each schema in a process of its own (a crash or a hang is that
schema's), until the mask's words are readable in memory; the cost of an empty call is printed and
subtracted. Times are the calling thread's own, so that what else runs on the machine does not count. White
space is free and members that a schema does not mention are allowed, for all. Caches are off: every
schema is compiled once.

What a peer did with a schema is kept in --work as soon as it is known: the same command again goes
on where the last one ended. --minutes: begin no further schema after so long; --seconds: processor
time of a peer for one schema. --json: the whole result (else it is printed). Another package
version, other limits or other cases begin anew. --verdicts: peers get a token per byte instead of
the vocabulary: what they accept is the same (but for limits that they count in tokens) and known in
minutes instead of hours; their times then say nothing and are left out.
"""

import argparse
import functools
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import resource
import subprocess
import sys
import time
import venv

WINDOW = 6
WALL_PER_CPU = 20  # on a busy machine
PACKAGES = ["xgrammar", "llguidance", "tokenizers", "numpy"]  # xgrammar brings torch
NOW = time.thread_time_ns


def in_environment(options) -> None:
    """Runs this file again in a virtual environment that has the peers."""
    python = options.work / "venv" / "bin" / "python"
    stamp = options.work / "installed"
    if not stamp.exists():
        venv.create(options.work / "venv", with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--upgrade", *PACKAGES],
                       check=True)
        stamp.write_text("\n".join(PACKAGES))
    sys.exit(subprocess.run([str(python), *sys.argv, "--inside"], check=False).returncode)


class Llguidance:
    def __init__(self, text, width, end):
        import llguidance
        import llguidance.numpy
        self.lib = llguidance
        self.tokenizer = llguidance.LLTokenizer(text or "byte")
        self.end = self.tokenizer.eos_token if end is None else end
        width = max(width, self.tokenizer.vocab_size)
        self.bits = llguidance.numpy.allocate_token_bitmask(1, width)

    def compile(self, schema):
        grammar = self.lib.LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": True})
        return lambda: self.start(grammar)

    def start(self, grammar):
        matcher = self.lib.LLMatcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def mask(self, matcher):
        self.lib.numpy.fill_next_token_bitmask(matcher, self.bits, 0)

    def allowed(self, token):
        return bool(int(self.bits[0, token // 32]) >> (token % 32) & 1)

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def back(self, matcher, tokens):
        matcher.rollback(tokens)

    def empty(self, matcher):
        return matcher.is_stopped()


class Xgrammar:
    def __init__(self, text, width, end):
        import xgrammar
        self.lib = xgrammar
        if text is None:  # a token per byte, and the end
            vocab = [bytes([byte]) for byte in range(256)] + [b"</s>"]
            self.end, width, kind = 256, 257, xgrammar.VocabType.RAW
        else:
            model = json.loads(text)
            vocab = [""] * width
            for token, number in model["model"]["vocab"].items():
                vocab[number] = token
            for token in model["added_tokens"]:
                vocab[token["id"]] = token["content"]
            self.end, kind = end, xgrammar.VocabType.BYTE_LEVEL
        info = xgrammar.TokenizerInfo(vocab, vocab_type=kind, vocab_size=width,
                                      stop_token_ids=[self.end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, width)

    def compile(self, schema):
        compiled = self.compiler.compile_json_schema(schema, any_whitespace=True,
                                                     strict_mode=False)
        return lambda: self.lib.GrammarMatcher(compiled)

    def mask(self, matcher):
        if not matcher.fill_next_token_bitmask(self.bits):
            self.bits.fill_(-1)

    def allowed(self, token):
        return bool(int(self.bits[0, token // 32]) >> (token % 32) & 1)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def back(self, matcher, tokens):
        matcher.rollback(tokens)

    def empty(self, matcher):
        return matcher.is_terminated()


def replay(engine, start, ids, end, out):
    """Whether the instance is accepted and may end; times of masks, then of windows of six masks of
    which 1..6 tokens stay in turn."""
    matcher, good = start(), True
    for token in ids:
        begin = NOW()
        engine.mask(matcher)
        good = engine.allowed(token) and engine.accept(matcher, token)
        out["mask"].append(NOW() - begin)
        if not good:
            break
    if good:
        engine.mask(matcher)
        good = engine.allowed(end)
    matcher, at, accepted = start(), 0, 1
    while at + WINDOW < len(ids):
        begin, taken = NOW(), 0
        for token in ids[at:at + WINDOW]:
            engine.mask(matcher)
            if not engine.accept(matcher, token):
                break
            taken += 1
        out["window"].append(NOW() - begin)
        if taken < WINDOW:
            break
        accepted = accepted % WINDOW + 1
        engine.back(matcher, WINDOW - accepted)
        at += accepted
    return good


def one_schema(engine, encode, seconds, content, pipe):
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    out = {"mask": [], "window": [], "compile": 0, "rejected": False, "accepted": False}
    try:
        begin = NOW()
        start = engine.compile(json.dumps(content["schema"]))
        engine.mask(start())
        out["compile"] = NOW() - begin
    except Exception as error:  # its way of declining a schema
        out["declined"] = str(error)[:200]
        pipe.send(out)
        return
    matcher = start()
    begin = NOW()
    for _ in range(1000):
        engine.empty(matcher)
    empty = (NOW() - begin) / 1000
    for test in content["tests"]:
        ids = encode(json.dumps(test["data"], ensure_ascii=False))
        good = replay(engine, start, ids, engine.end, out)
        out["rejected"] |= test["valid"] and not good
        out["accepted"] |= good and not test["valid"]
    out["mask"] = [max(0, round(t - 2 * empty)) for t in out["mask"]]
    out["window"] = [max(0, round(t - 2 * WINDOW * empty)) for t in out["window"]]
    out["empty"] = empty
    pipe.send(out)


def figures(times):
    times = sorted(times)
    at = lambda q: times[min(len(times) - 1, int(q * len(times)))] / 1000 if times else None
    return {"count": len(times), "p50": at(.5), "p90": at(.9), "p99": at(.99), "p99.9": at(.999),
            "max": at(1)}


def peer(name, options, cases, timed=True):
    """`timed`: with the vocabulary given; else a token per byte, which changes no verdict."""
    import tokenizers
    text = pathlib.Path(options.tokenizer).read_text() if timed else None
    end, encode = None, lambda t: list(t.encode(errors="surrogatepass"))
    if timed:
        tokenizer = tokenizers.Tokenizer.from_str(text)
        end = tokenizer.token_to_id("<｜end▁of▁sentence｜>")
        encode = lambda t: tokenizer.encode(t, add_special_tokens=False).ids
    engine = {"llguidance": Llguidance, "xgrammar": Xgrammar}[name](
        text, options.width if timed else 0, end)
    kept = Kept(options, name, timed, text if timed else "", cases)
    context = multiprocessing.get_context("fork")
    for number, case in enumerate(cases):
        if number in kept.done or time.monotonic() > options.until:
            continue
        here, there = context.Pipe()
        process = context.Process(target=one_schema, args=(engine, encode, options.seconds, case, there))
        process.start()
        there.close()
        out = None
        try:
            if here.poll(options.seconds * WALL_PER_CPU):
                out = here.recv()
        except EOFError:
            pass
        process.kill()
        process.join()
        kept.add(number, {"crashed": True} if out is None else out)
    return summary(kept.done, len(cases))


class Kept:
    """What was found out so far, a line each; other cases, limits or versions have another file."""

    def __init__(self, options, name, timed, vocabulary, cases):
        what = [name, importlib.metadata.version(name), timed, options.seconds, options.width,
                vocabulary, cases]
        digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        path = options.work / f"{name}-{digest}.jsonl"
        self.done = {}
        if path.exists():
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # the last one may be torn
                    self.done.update({n: out for n, out in [json.loads(line)]})
        path.write_text("".join(json.dumps(item) + "\n" for item in self.done.items()))
        self.file = path.open("a")

    def add(self, number, out):
        self.done[number] = out
        self.file.write(json.dumps([number, out]) + "\n")
        self.file.flush()


def summary(done, count):
    total = {"mask": [], "window": [], "compile": [], "passed": 0, "declined": 0, "rejected": 0,
             "accepted": 0, "crashed": 0, "empty": []}
    for out in done.values():
        if "crashed" in out or "declined" in out:
            total["crashed" if "crashed" in out else "declined"] += 1
            continue
        for key in ("mask", "window"):
            total[key] += out[key]
        total["compile"].append(out["compile"])
        total["empty"].append(out["empty"])
        total["rejected"] += out["rejected"]
        total["accepted"] += out["accepted"]
        total["passed"] += not out["rejected"] and not out["accepted"]
    return {**{k: total[k] for k in ("passed", "declined", "rejected", "accepted", "crashed")},
            "not_reached": count - len(done),
            "empty_call_us": (sum(total["empty"]) / len(total["empty"]) / 1000
                              if total["empty"] else None),
            **{k + "_us": figures(total[k]) for k in ("mask", "window", "compile")}}


def ours(options, cases):
    folder = options.work / "schemas"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, case in enumerate(cases):
        (folder / f"{number:05}.json").write_text(json.dumps(case))
    run = subprocess.run([options.tfctl, "grammar", "bench", str(folder), "--tokenizer",
                          options.tokenizer, "--json"], capture_output=True, text=True, check=False)
    data = json.loads(run.stdout)
    return {"passed": len(data["passed"]), "declined": len(data["unsupported"]),
            "rejected": len(data["valid_rejected"]), "accepted": len(data["invalid_accepted"]),
            "crashed": 0, "not_reached": 0, "empty_call_us": data["empty_call_us"],
            **{k: data[k] for k in ("mask_us", "window_us", "compile_us")}}


def suite_cases(folder):
    """One case per test: its schema and its one instance."""
    cases = []
    for file in sorted(pathlib.Path(folder).glob("*.json")):
        for group in json.loads(file.read_text()):
            for test in group["tests"]:
                cases.append({"schema": group["schema"], "tests": [test]})
    return cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, type=pathlib.Path)
    for name in ("schemas", "tokenizer", "tfctl"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--suite")
    parser.add_argument("--engines", default="ours,llguidance,xgrammar")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--width", type=int, default=129280)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--inside", action="store_true")
    options = parser.parse_args()
    options.until = time.monotonic() + 60 * options.minutes
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if not options.inside:
        in_environment(options)
    files = sorted(f for f in pathlib.Path(options.schemas).glob("*.json")
                   if f.name != "MANIFEST.json")
    if options.limit:  # evenly over the names
        files = [files[i * len(files) // options.limit] for i in range(options.limit)]
    cases = [json.loads(file.read_text()) for file in files]
    suite = suite_cases(options.suite) if options.suite else []
    result, verdicts = {}, {}
    for name in options.engines.split(","):
        run = functools.partial(ours, options) if name == "ours" else functools.partial(
            peer, name, options)
        quick = run if name == "ours" else functools.partial(run, timed=False)
        result[name] = run(cases) if not options.verdicts else quick(cases)
        if options.verdicts and name != "ours":
            result[name] = {**result[name], "mask_us": figures([]), "window_us": figures([]),
                            "compile_us": figures([])}
        if suite:
            verdicts[name] = {k: v for k, v in quick(suite).items() if not k.endswith("_us")}
    versions = {name: importlib.metadata.version(name) for name in result if name != "ours"}
    text = json.dumps({"schemas": len(cases), "versions": versions, **result,
                       "suite_tests": len(suite), "suite": verdicts}, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text)
    print("\n| engine | mask p50 / p99 / p99.9 / max us | window p50 / p99 us | "
          "compile p50 / p99 / max ms | passed | declined | rejected | accepted | crashed | "
          "not reached |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    number = lambda v, by=1: "-" if v is None else f"{v / by:.1f}"
    for name, r in result.items():
        masks = " / ".join(number(r["mask_us"][q]) for q in ("p50", "p99", "p99.9", "max"))
        windows = " / ".join(number(r["window_us"][q]) for q in ("p50", "p99"))
        compiles = " / ".join(number(r["compile_us"][q], 1000) for q in ("p50", "p99", "max"))
        print(f"| {name} | {masks} | {windows} | {compiles} | {r['passed']} | {r['declined']} | "
              f"{r['rejected']} | {r['accepted']} | {r['crashed']} | {r['not_reached']} |")
    for name, r in verdicts.items():
        print(f"suite, {name}: {r['passed']} of {len(suite)} right, {r['declined']} declined, "
              f"{r['rejected']} rejected, {r['accepted']} accepted, {r['crashed']} crashed, "
              f"{r['not_reached']} not reached")


if __name__ == "__main__":
    main()
