"""Replies of a given form from the embedded model, through the official client: what comes back is
valid whatever the model would rather have said, drafted or not, thinking or not, alone or in
company; what cannot be enforced is refused before any header."""

import json
import re
import threading

import jsonschema
import openai
import pytest

from conftest import Daemon, say
from test_model import ask, client, daemon, pytestmark, sha  # noqa: F401 (fixtures)

PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0,
                                                         "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    "ok": {"type": "boolean"}}, "required": ["name", "age", "ok"], "additionalProperties": False}
TREE = {"$defs": {"n": {"type": "object", "properties": {
    "v": {"type": "integer", "minimum": 0, "maximum": 9},
    "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/n"}}},
    "required": ["v", "kids"], "additionalProperties": False}}, "$ref": "#/$defs/n"}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
             "type": "object", "properties": {
                 "city": {"type": "string", "maxLength": 20},
                 "days": {"type": "integer", "minimum": 1, "maximum": 9},
                 "unit": {"enum": ["C", "F"]}},
             "required": ["city", "unit"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "ping"}}]


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, **more}}


def check_call(call):
    tool = next(t["function"] for t in TOOLS if t["function"]["name"] == call.function.name)
    jsonschema.validate(json.loads(call.function.arguments), tool.get("parameters", {}))


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "seed": 5}])
@pytest.mark.parametrize("schema", [PERSON, TREE])
def test_json_schema(client, schema, options, thinking):
    if thinking:
        options = dict(options, reasoning_effort="low",
                       extra_body={"thinking_budget": 12})
    replies = [ask(client, "Who is it?", max_tokens=300, response_format=schema_format(schema),
                   **options)]
    extra = dict(options.get("extra_body", {}), draft=False)
    replies.append(ask(client, "Who is it?", max_tokens=300, response_format=schema_format(schema),
                       **dict(options, extra_body=extra)))
    assert sha(replies[0]) == sha(replies[1])  # drafted and serial
    for reply in replies:
        message = reply.choices[0].message
        if reply.choices[0].finish_reason == "length":
            continue
        assert reply.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(message.content), schema)
        assert hasattr(message, "reasoning_content") == thinking


def test_every_other_form(client):
    for form, check in (
            ({"response_format": {"type": "json_object"}}, lambda t: isinstance(json.loads(t), dict)),
            ({"extra_body": {"guided_json": {"type": "integer", "minimum": 10, "maximum": 99}}},
             lambda t: 10 <= int(t) <= 99),
            ({"extra_body": {"guided_regex": "(ab|cd){2,3}[0-9]"}},
             lambda t: re.fullmatch("(ab|cd){2,3}[0-9]", t)),
            ({"extra_body": {"guided_choice": ["1", "10", "a.b", "(x)"]}},
             lambda t: t in ("1", "10", "a.b", "(x)")),
            ({"extra_body": {"guided_grammar": 'root ::= "yes" | "no" " " [a-c]{3}'}},
             lambda t: re.fullmatch("yes|no [a-c]{3}", t)),
            ({"extra_body": {"structured_outputs": {"choice": ["north", "south"]}}},
             lambda t: t in ("north", "south"))):
        for seed in range(4):
            reply = ask(client, "Say something.", max_tokens=400, temperature=2, seed=seed, **form)
            if reply.choices[0].finish_reason == "stop":
                assert check(reply.choices[0].message.content), (form, reply)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_forced_calls(client, stream, thinking):
    extra = {"reasoning_effort": "low", "extra_body": {"thinking_budget": 8}} if thinking else {}
    for choice, names in (("required", {"get_weather", "ping"}),
                          ({"type": "function", "function": {"name": "get_weather"}},
                           {"get_weather"}),
                          ({"type": "function", "function": {"name": "ping"}}, {"ping"})):
        for seed in range(3):
            options = dict(max_tokens=400, temperature=1.2, seed=seed, tools=TOOLS,
                           tool_choice=choice, parallel_tool_calls=False, **extra)
            if stream:
                calls, finish, content = {}, None, ""
                for chunk in ask(client, "What is the weather?", stream=True, **options):
                    for c in chunk.choices:
                        content += c.delta.content or ""
                        finish = c.finish_reason or finish
                        for piece in c.delta.tool_calls or []:
                            call = calls.setdefault(piece.index, ["", ""])
                            call[0] += piece.function.name or ""
                            call[1] += piece.function.arguments or ""
                if finish == "length":
                    continue
                assert finish == "tool_calls" and not content.strip() and len(calls) == 1
                assert calls[0][0] in names
                json.loads(calls[0][1])
                continue
            reply = ask(client, "What is the weather?", **options)
            if reply.choices[0].finish_reason == "length":
                continue
            message = reply.choices[0].message
            assert reply.choices[0].finish_reason == "tool_calls", reply
            assert len(message.tool_calls) == 1 and message.tool_calls[0].function.name in names
            assert not (message.content or "").strip()
            check_call(message.tool_calls[0])


def test_auto_calls_are_calls_or_text(client):
    for seed in range(3):
        reply = ask(client, "What is the weather in Oslo?", tools=TOOLS, temperature=1, seed=seed,
                    max_tokens=200)
        message = reply.choices[0].message
        for call in message.tool_calls or []:
            if reply.choices[0].finish_reason != "length":
                check_call(call)
        assert "DSML" not in (message.content or "")
        drafted = ask(client, "What is the weather in Oslo?", tools=TOOLS, temperature=1, seed=seed,
                      max_tokens=200, extra_body={"draft": False})
        assert sha(drafted) == sha(reply)


def test_four_streams_of_different_forms(client):
    forms = [({"response_format": schema_format(PERSON)}, PERSON),
             ({"response_format": schema_format(TREE)}, TREE),
             ({"response_format": {"type": "json_object"}}, {"type": "object"}),
             ({"extra_body": {"guided_choice": ["a", "b"]}}, None)]
    alone = [sha(ask(client, "Go.", max_tokens=120, temperature=1, seed=i, **f))
             for i, (f, _) in enumerate(forms)]
    together = [None] * 4

    def run(i):
        reply = ask(client, "Go.", max_tokens=120, temperature=1, seed=i, **forms[i][0])
        together[i] = sha(reply)
        if forms[i][1] and reply.choices[0].finish_reason == "stop":
            jsonschema.validate(json.loads(reply.choices[0].message.content), forms[i][1])
    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 13])
def test_cut_replies_say_so(client, max_tokens):
    reply = ask(client, "Go.", max_tokens=max_tokens, temperature=0,
                response_format=schema_format(PERSON))
    if reply.choices[0].finish_reason == "stop":
        jsonschema.validate(json.loads(reply.choices[0].message.content), PERSON)
    else:
        assert reply.choices[0].finish_reason == "length"


def test_refusals_before_headers(client):
    deep = {}
    for _ in range(300):
        deep = {"items": deep}
    cyclic = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    for form, param, words in (
            ({"response_format": schema_format({"pattern": "(?=x)y", "type": "string"})},
             "response_format.json_schema.schema", "pattern"),
            ({"response_format": schema_format({"type": "string", "format": "idn-email"})},
             "response_format.json_schema.schema", "format"),
            ({"response_format": schema_format({"type": "string", "format": "blue"}, strict=True)},
             "response_format.json_schema.schema", "blue"),
            ({"response_format": schema_format({"allOf": [{"type": "string"}, {"type": "null"}]})},
             "response_format.json_schema.schema", "no value"),
            ({"response_format": schema_format(cyclic)}, "response_format.json_schema.schema", ""),
            ({"extra_body": {"guided_json": deep}}, None, ""),
            ({"extra_body": {"guided_regex": "(unclosed"}}, "guided_regex", "offset"),
            ({"extra_body": {"guided_regex": "a{5,2}"}}, "guided_regex", ""),
            ({"extra_body": {"guided_regex": "((((a{1,999}){1,999}){1,999}){1,999})"}},
             "guided_regex", ""),
            ({"extra_body": {"guided_grammar": "root ::= " + "(" * 60000}}, "guided_grammar", ""),
            ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters":
                {"type": "object", "properties": {"a": {"pattern": "(?!x)"}}}}}],
              "tool_choice": "required"}, "tools[0].function.parameters", '"f"')):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as error:
                ask(client, "hi", stream=stream, **form)
            if param:
                assert error.value.param == param, error.value
            assert words in str(error.value)
    assert ask(client, "hi", max_tokens=4).choices[0].finish_reason


def test_what_is_only_an_annotation_is_listed(client):
    reply = ask(client, "hi", max_tokens=40, response_format=schema_format(
        {"type": "string", "maxLength": 3, "format": "topic"}))
    assert any("topic" in a for a in reply.model_extra["tensorfold"]["annotations"])
