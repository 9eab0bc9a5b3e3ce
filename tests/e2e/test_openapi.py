"""The server against the document that it gives of itself: requests made from /openapi.json, right
and wrong ones, over the scripted engine. None may end in a 5xx, each answer must be one that the
document names, and what the document forbids must be refused."""

import hypothesis
import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from schemathesis import checks, specs  # noqa: E402

CHECKS = [schemathesis.checks.not_a_server_error,
          specs.openapi.checks.status_code_conformance,
          specs.openapi.checks.content_type_conformance,
          specs.openapi.checks.response_schema_conformance,
          specs.openapi.checks.negative_data_rejection,
          specs.openapi.checks.unsupported_method]


@pytest.fixture
def document(daemon):
    return schemathesis.openapi.from_url(daemon.url + "/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True,
                     suppress_health_check=list(hypothesis.HealthCheck))
def test_every_operation(case):
    response = case.call(timeout=30)
    case.validate_response(response, checks=CHECKS)
