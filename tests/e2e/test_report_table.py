"""tests/data/report_tests.json: each report of what users of other servers have met, and the tests of
its kind. That the tests are there, and that no report of these areas is without one."""

import json
import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = json.loads((ROOT / "tests/data/report_tests.json").read_text(encoding="utf-8"))
AREAS = ("1-http-sse", "2-tool-calls-deepseek", "3-structured-outputs", "9-sampling-and-context")
WISHES = {f"WISH-{n:02}" for n in (2, 4, 5, 6, 7, 11, 12, 13, 15)}
LEAST = {"HTTP": 22, "TOOL": 21, "SO": 18, "SAMP": 12, "WISH": 9}


def test_every_named_test_is_there():
    for report, tests in TABLE.items():
        assert tests, report
        for name in tests:
            file, _, case = name.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            wanted = (rf"^def {re.escape(case)}\(" if file.endswith(".py")
                      else rf"^BOOST_AUTO_TEST_CASE\({re.escape(case)}\)")
            assert re.search(wanted, text, re.MULTILINE), (report, name)


def test_no_area_got_smaller():
    for kind, least in LEAST.items():
        assert sum(r.startswith(kind + "-") for r in TABLE) >= least, kind


def test_every_recorded_report_has_a_test():
    folder = os.environ.get("TENSORFOLD_TEST_DATA")
    file = pathlib.Path(folder or "/nowhere") / "cases/field-reports.json"
    if not file.is_file():
        pytest.skip("$TENSORFOLD_TEST_DATA holds no reports")
    for report in json.loads(file.read_text(encoding="utf-8")):
        if report["area"] in AREAS or report["id"] in WISHES:
            assert report["id"] in TABLE, report["id"]
