"""The server against the document that it gives of itself: requests made from /openapi.json, right
and wrong ones, over the scripted engine. None may end in a 5xx, each answer must be one that the
document names, and what the document forbids must be refused."""

import hypothesis
import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance, negative_data_rejection, response_schema_conformance,
    status_code_conformance)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance,
          response_schema_conformance, negative_data_rejection]
EXAMPLES = 12  # of each operation and mode


def requests_of(operation, mode):
    """Sends what is made for one operation; returns how many were sent."""
    sent = []

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))
    def run(case):
        response = case.call(timeout=60)
        sent.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    try:
        run()
    except hypothesis.errors.Unsatisfiable:
        assert mode == GenerationMode.NEGATIVE  # nothing about it can be wrong
    return sent


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation(daemon, mode):
    document = schemathesis.openapi.from_url(daemon.url + "/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 15
    statuses = []
    for operation in operations:
        if mode == GenerationMode.POSITIVE or operation.body:
            statuses += requests_of(operation, mode)
    if mode == GenerationMode.POSITIVE:
        assert len(statuses) > 80 and statuses.count(200) > 10
    else:
        assert len(statuses) > 40 and statuses.count(400) > 40
    assert daemon.request("GET", "/health")[0] == 200
