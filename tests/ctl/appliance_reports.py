"""tests/data/appliance_reports.json: each report about links, memory and services, the tests of its kind
and what is open. That the named tests are there, that no report is without either, and that none of the
recorded reports of these areas is missing.

usage: appliance_reports.py ROOT
"""

import json
import os
import pathlib
import re
import sys

AREAS = ("5-distributed-nccl-roce", "6-memory-gb10", "8-systemd-packaging")
WISHES = {"WISH-03", "WISH-08", "WISH-10"}
LEAST = {"NET": 17, "MEM": 16, "SYS": 14, "WISH": 3}
TESTED_LEAST = 44  # reports with a test; the others say why not


def is_there(root: pathlib.Path, name: str) -> bool:
    file, _, case = name.partition("::")
    path = root / file
    if not case or not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return any(c["name"] == case for c in json.loads(text)["cases"])
    wanted = (rf"^ *def {re.escape(case)}\(" if path.suffix == ".py"
              else rf"^BOOST_AUTO_TEST_CASE\({re.escape(case)}\)")
    return re.search(wanted, text, re.MULTILINE) is not None


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    table = json.loads((root / "tests/data/appliance_reports.json").read_text(encoding="utf-8"))
    problems = []
    for report, row in table.items():
        if not row["tests"] and not row.get("open"):
            problems.append(f"{report}: neither a test nor why there is none")
        problems += [f"{report}: {name} is not there" for name in row["tests"] if not is_there(root, name)]
    for kind, least in LEAST.items():
        if sum(r.startswith(kind + "-") for r in table) < least:
            problems.append(f"fewer than {least} reports of {kind}")
    tested = sum(bool(row["tests"]) for row in table.values())
    if tested < TESTED_LEAST:
        problems.append(f"only {tested} reports have a test")
    folder = os.environ.get("TENSORFOLD_TEST_DATA")
    recorded = pathlib.Path(folder or "/nonexistent") / "cases/field-reports.json"
    if recorded.is_file():
        for report in json.loads(recorded.read_text(encoding="utf-8")):
            if (report["area"] in AREAS or report["id"] in WISHES) and report["id"] not in table:
                problems.append(f"{report['id']} is not in the table")
    # The check itself.
    assert not is_there(root, "tests/ctl/doctor_test.cc::no_such_case")
    assert not is_there(root, "tests/data/preflight/cases.json::no such case")
    whole = sum(bool(row["tests"]) and not row.get("open") for row in table.values())
    print("\n".join(problems + [f"{len(table)} reports: {tested} with tests, {whole} of them with nothing open; "
                                f"{len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
