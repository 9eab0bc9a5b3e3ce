"""The Markdown table of docs/performance.md from a kernel bench's JSON, with a peer beside it.

table.py BENCH.json [--peer FILE] [--library FILE]

FILE: {"rows": {NAME: {"us": NUMBER, "note": TEXT, "error": NUMBER}}}; note and error may be left out.
NAME is a row of BENCH.json; one that is not there is an error, so that no figure is lost by a
spelling. `x` is the peer's time over ours. A row without a peer shows '-'.
Exit status: 1 when a file or a row is wrong, which is then named.
"""

import argparse
import json
import math
import sys


class Wrong(Exception):
    pass


def number(value, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Wrong(f"{what}: {value!r} is not a number")
    if value <= 0:
        raise Wrong(f"{what}: {value} is not above zero")
    return float(value)


def bench_rows(text: str, name: str) -> list[dict]:
    try:
        rows = json.loads(text)["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise Wrong(f"{name}: no rows of a bench ({error})") from error
    seen = set()
    for row in rows:
        if row["kernel"] in seen:
            raise Wrong(f"{name}: row '{row['kernel']}' stands there twice")
        seen.add(row["kernel"])
        for field in ("median_us", "p10_us", "p90_us", "limit_us", "operations", "gb10_us"):
            number(row.get(field), f"{name}: row '{row['kernel']}', {field}")
    return rows


def other_rows(text: str, name: str, known: list[dict]) -> dict[str, dict]:
    try:
        rows = json.loads(text)["rows"]
        items = list(rows.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"{name}: no rows ({error})") from error
    kernels = {row["kernel"] for row in known}
    for kernel, row in items:
        if kernel not in kernels:
            raise Wrong(f"{name}: the bench has no row '{kernel}'")
        if not isinstance(row, dict):
            raise Wrong(f"{name}: row '{kernel}' is not an object")
        number(row.get("us"), f"{name}: row '{kernel}', us")
    return rows


def short(value: float) -> str:
    return f"{value:.1f}" if value < 10000 else f"{value:.0f}"


def cell(row: dict | None) -> str:
    if row is None:
        return "-"
    return short(row["us"]) + (f" ({row['note']})" if row.get("note") else "")


def table(rows: list[dict], peer: dict[str, dict], library: dict[str, dict]) -> str:
    lines = ["| kernel | us | p10 | p90 | limit | % | goal | peer | x | library | TFLOP/s | GB10 us |"
             " error |", "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        us, beside = row["median_us"], peer.get(row["kernel"])
        goal = row.get("goal_us") or 0
        error = row.get("relative_error", -1)
        cells = [row["kernel"], short(us), short(row["p10_us"]), short(row["p90_us"]),
                 short(row["limit_us"]), f"{100 * row['limit_us'] / us:.0f}",
                 f"{goal:g}" if goal > 0 else "-", cell(beside),
                 f"{beside['us'] / us:.2f}" if beside else "-", cell(library.get(row["kernel"])),
                 f"{row['operations'] / us / 1e6:.0f}", f"{row['gb10_us']:.0f}",
                 f"{error:.1e}" if error >= 0 else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def reached(rows: list[dict], peer: dict[str, dict]) -> str:
    goals = [r for r in rows if (r.get("goal_us") or 0) > 0]
    met = [r["kernel"] for r in goals if r["median_us"] <= r["goal_us"]]
    ahead = [r for r in rows if r["kernel"] in peer
             and r["median_us"] < peer[r["kernel"]]["us"]]
    text = f"Goals reached: {len(met)} of {len(goals)}"
    text += f" ({'; '.join(met)})." if met else "."
    if peer:
        text += f" Ahead of the peer: {len(ahead)} of {len(peer)} rows timed beside it."
    return text + "\n"


def run(arguments: list[str]) -> str:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("bench")
    parser.add_argument("--peer")
    parser.add_argument("--library")
    o = parser.parse_args(arguments)

    def read(name: str) -> str:
        try:
            with open(name, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise Wrong(f"{name}: {error}") from error

    rows = bench_rows(read(o.bench), o.bench)
    peer = other_rows(read(o.peer), o.peer, rows) if o.peer else {}
    library = other_rows(read(o.library), o.library, rows) if o.library else {}
    return table(rows, peer, library) + "\n" + reached(rows, peer)


def main() -> int:
    try:
        print(run(sys.argv[1:]), end="")
    except Wrong as wrong:
        print(f"table: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
