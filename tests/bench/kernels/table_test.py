"""The table of kernel benches: figures, ratios and goals by hand, and files that must be refused."""

import json
import pathlib
import sys
import tempfile

import table

ROOT = pathlib.Path(__file__).resolve().parents[3]


def bench(**changes) -> dict:
    row = {"kernel": "a", "median_us": 10.0, "p10_us": 9.5, "p90_us": 11.0, "limit_us": 4.0,
           "operations": 2e9, "gb10_us": 61.2, "goal_us": 12.0, "relative_error": 2.1e-4}
    second = {**row, "kernel": "b", "median_us": 20.0, "goal_us": 0.0, "relative_error": -1}
    return {"rows": [{**row, **changes}, second]}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kernel_table") as folder:
        return check(pathlib.Path(folder))


def check(folder: pathlib.Path) -> int:
    count = 0

    def write(value) -> str:
        nonlocal count
        count += 1
        path = folder / f"{count}.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    peer = write({"rows": {"a": {"us": 15.0, "note": "int8"}, "b": {"us": 5.0}}})
    library = write({"rows": {"b": {"us": 40.04}}})
    text = table.run([write(bench()), "--peer", peer, "--library", library])
    lines = text.splitlines()
    wanted = ["| a | 10.0 | 9.5 | 11.0 | 4.0 | 40 | 12 | 15.0 (int8) | 1.50 | - | 200 | 61 | 2.1e-04 |",
              "| b | 20.0 | 9.5 | 11.0 | 4.0 | 20 | - | 5.0 | 0.25 | 40.0 | 100 | 61 | - |"]
    wrong = [w for w in wanted if w not in lines]
    if "Goals reached: 1 of 1 (a). Ahead of the peer: 1 of 2 rows timed beside it." not in lines:
        wrong.append("the sum below the table")
    if len({line.count("|") for line in lines if line.startswith("|")}) != 1:
        wrong.append("rows of one width")
    alone = table.run([write(bench(median_us=12.5))])
    if "| a | 12.5 | 9.5 | 11.0 | 4.0 | 32 | 12 | - | - | - |" not in alone \
            or "Goals reached: 0 of 1." not in alone or "peer:" in alone:
        wrong.append("a bench alone")

    refused = {
        "unknown row": ([write(bench()), "--peer", write({"rows": {"A": {"us": 1}}})], "'A'"),
        "zero": ([write(bench()), "--peer", write({"rows": {"a": {"us": 0}}})], "'a', us"),
        "text": ([write(bench()), "--peer", write({"rows": {"a": {"us": "9"}}})], "'9'"),
        "not a number": ([write(bench()), "--peer", write('{"rows": {"a": {"us": NaN}}}')], "nan"),
        "bare number": ([write(bench()), "--peer", write({"rows": {"a": 5}})], "not an object"),
        "list": ([write(bench()), "--peer", write({"rows": []})], "no rows"),
        "no median": ([write(bench(median_us=None))], "median_us"),
        "twice": ([write({"rows": bench()["rows"] * 2})], "twice"),
        "no JSON": ([write("{")], "no rows of a bench"),
        "no file": ([str(folder / "absent.json")], "absent.json"),
    }
    for name, (arguments, says) in refused.items():
        try:
            table.run(arguments)
            wrong.append(f"{name}: accepted")
        except table.Wrong as error:
            if says not in str(error):
                wrong.append(f"{name}: '{error}' does not say {says}")
    # Every published run has a table, with what was timed beside it.
    folder = ROOT / "docs/runs"
    runs = [p for p in sorted(folder.glob("*.json")) if '"kernel"' in p.read_text()
            and not p.stem.endswith(("-peer", "-rows"))]
    for path in runs:
        arguments = [str(path)]
        for kind in ("peer", "library"):
            beside = folder / f"{path.stem}-{kind}-rows.json"
            arguments += [f"--{kind}", str(beside)] if beside.exists() else []
        table.run(arguments)
    if not runs:
        wrong.append("no published run")
    for name in wrong:
        print(f"table test: wrong: {name}")
    print(f"table test: {len(refused) + 3} cases, {len(runs)} published, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
