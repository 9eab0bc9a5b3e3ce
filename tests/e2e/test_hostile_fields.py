"""Every field of every route takes every kind of wrong value: an answer in the route's own envelope
that names the field, and never a failure of the server.

The fields come from the document that the daemon serves, the values from
tests/data/hostile_values.json, so a new field is tried without a word here.
"""

import http.client
import json
import os
import pathlib

import pytest

VALUES = pathlib.Path(__file__).resolve().parent.parent / "data" / "hostile_values.json"
# A request that is right, to which one member is added or changed.
ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}


def values() -> list[str]:
    """JSON texts, as they go on the wire."""
    data = json.loads(VALUES.read_text())
    return data["json"] + [json.dumps(one["text"] * one["times"]) for one in data["repeated"]]


def fields_of(daemon, path: str) -> list[str]:
    document = json.loads(daemon.request("GET", "/openapi.json")[2])
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return list(schema["properties"])


@pytest.mark.parametrize("path", ROUTES)
def test_every_field_with_every_wrong_value(daemon, path):
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    fields = fields_of(daemon, path)
    assert len(fields) > 1
    refused = 0
    for field in fields:
        for value in values():
            whole = {name: json.dumps(one) for name, one in ROUTES[path].items() if name != field}
            whole[field] = value
            body = "{" + ",".join(f"{json.dumps(k)}:{v}" for k, v in whole.items()) + "}"
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
            where = f"{path} {field}: {value[:60]} gave {reply.status} {text[:300]!r}"
            assert reply.status in (200, 400, 404), where
            if reply.status == 200:
                continue
            refused += 1
            error = json.loads(text)["error"]
            assert error["message"] and error["type"], where
            named = error["message"] + str(error.get("param"))
            # Too long together is about the prompt, whichever field made it so; the tools or the
            # form that a field needs may be what is missing.
            others = ("context length", "not JSON", "needs", "too few", "asks for a call")
            assert field in named or any(word in named for word in others), where
    assert refused > len(fields), "most of these values are wrong"
    assert daemon.process.poll() is None, os.linesep.join(daemon.log[-20:])
