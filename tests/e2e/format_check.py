"""The format check: replies to 200 schemas from the embedded model, four streams at a time, with every
draft verified; each reply that ended by itself is checked by PyPI's jsonschema, and one in ten is
made again alone and without drafts: it must be the same.

usage: format_check.py --work DIR --daemon PROGRAM [--count N] [--schemas DIR]

Schemas: DIR, or schemas/maskbench of $TENSORFOLD_TEST_DATA; without either it is skipped (77). Uses
the environment of run.py.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
STREAMS = 4
REPLY_TOKENS = 500
PROMPTS = ["Give me one.", "Fill it in.", "An example, please.", "Say it as data."]


def schemas_of(folder: pathlib.Path):
    """(name, schema) in a fixed order that mixes the sources."""
    files = sorted(folder.glob("*.json"), key=lambda f: (hash_of(f.name), f.name))
    for file in files:
        data = json.loads(file.read_text())
        yield file.stem, data["schema"] if "schema" in data else data


def hash_of(name: str) -> int:
    value = 0
    for c in name:
        value = (value * 131 + ord(c)) % 1_000_003
    return value


def check(schema, text: str) -> str | None:
    """What an independent validator says against it, or None."""
    import jsonschema
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    for error in validator(schema).iter_errors(value):
        return f"{error.json_path}: {error.message[:200]}"
    return None


def run(daemon, folder: pathlib.Path, count: int) -> int:
    import openai
    client = daemon.client(timeout=900)
    outcomes = collections.Counter()
    bad = []

    def one(item):
        number, (name, schema) = item
        def ask(draft):
            return client.chat.completions.create(
                model="tiny", max_tokens=REPLY_TOKENS, temperature=0.8, seed=number,
                messages=[{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                response_format={"type": "json_schema", "json_schema": {
                    "name": "reply", "schema": schema}}, extra_body={"draft": draft})
        try:
            reply = ask(True)
        except openai.BadRequestError as error:
            return name, "refused", str(error)[:160], 0
        drafted = reply.model_extra["tensorfold"]["drafted"]
        if number % 10 == 0 and (ask(False).model_extra["tensorfold"]["token_sha"] !=
                                 reply.model_extra["tensorfold"]["token_sha"]):
            return name, "differs", "from its reply without drafts", drafted
        if reply.choices[0].finish_reason == "length":
            return name, "cut", "", drafted
        wrong = check(schema, reply.choices[0].message.content)
        return name, "wrong" if wrong else "valid", wrong or "", drafted

    drafted_total = 0
    items = enumerate(schemas_of(folder))
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        waiting = set()
        done_count = 0
        while done_count < count:
            while len(waiting) < STREAMS and (item := next(items, None)):
                waiting.add(pool.submit(one, item))
            if not waiting:
                break
            done, waiting = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                name, outcome, why, drafted = future.result()
                outcomes[outcome] += 1
                drafted_total += drafted
                done_count += outcome != "refused"
                if outcome in ("wrong", "differs"):
                    bad.append((name, outcome, why))
    print(f"{done_count} schemas, {STREAMS} streams: {outcomes['valid']} replies valid, "
          f"{outcomes['cut']} cut at {REPLY_TOKENS} tokens, {outcomes['wrong']} wrong, "
          f"{outcomes['differs']} differ without drafts, {outcomes['refused']} schemas refused; "
          f"{drafted_total} drafts verified")
    for line in bad:
        print("  " + " | ".join(line))
    enough = outcomes["valid"] * 2 >= done_count and drafted_total > done_count
    return 0 if not bad and enough and done_count >= min(count, 200) else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--schemas", type=pathlib.Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.schemas is None and "TENSORFOLD_TEST_DATA" in os.environ:
        options.schemas = pathlib.Path(os.environ["TENSORFOLD_TEST_DATA"]) / "schemas/maskbench"
    if options.schemas is None or not options.schemas.is_dir():
        print("skipped: no schemas ($TENSORFOLD_TEST_DATA)")
        return SKIPPED
    sys.path.insert(0, str(HERE))
    if not options.inside:
        from run import install
        python = install(options.work)
        if python is None:
            print("skipped: the package index cannot be reached")
            return SKIPPED
        return subprocess.run([python, str(HERE / "format_check.py"), "--inside",
                               *sys.argv[1:]], check=False).returncode
    from conftest import Daemon
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder), options.daemon,
                        '[model]\nname = "tiny"\n[engine]\ndrafts = "full"\n')
        daemon.wait_ready()
        try:
            return run(daemon, options.schemas, options.count)
        finally:
            daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
