"""What users of other servers have met with structured outputs, by kind: what a form takes, what it
refuses, and forms that end in an error instead of a hang. Offline, through `tfctl grammar check`;
the same forms under load are in test_agent_suite.py and test_format_check.py."""

import json
import os
import subprocess
import time

import pytest

TREE = {"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "properties": {"v": {"type": "integer"}, "kids": {
        "type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["v"], "additionalProperties": False}}}


def check(tmp_path, option, form, instance=None):
    """(exit status, the verdict as JSON or None, seconds)."""
    file = tmp_path / "form"
    file.write_text(json.dumps(form) if option in ("--schema", "--choice") else form)
    command = [os.environ["TF_CTL"], "grammar", "check", option, str(file), "--json"]
    if option == "--regex":
        command[4] = form
    if option == "--schema":
        command.append("--serving")  # as the server reads it: white space, order, extra members
    if instance is not None:
        (tmp_path / "instance").write_text(instance)
        command += ["--instance", str(tmp_path / "instance")]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    verdict = json.loads(done.stdout) if done.stdout.strip().startswith("{") else None
    return done.returncode, verdict, time.monotonic() - began


def kids(depth):
    return '{"v": 1}' if depth == 0 else '{"v": 1, "kids": [%s]}' % kids(depth - 1)


# report -> (schema, texts it takes, texts it refuses)
TAKES = {
    "SO-06 trees, as deep as they are": (TREE, ['{"v": 1}', kids(1), kids(60)],
                                         ['{"v": 1, "kids": [{}]}', '{"v": "1"}']),
    "SO-07 no items at all": ({"type": "array", "maxItems": 0}, ["[]"], ["[1]", "[null]"]),
    "SO-07 wide bounds": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 10, "maxItems": 1000},
        [json.dumps([1] * 10), json.dumps([1] * 1000)],
        [json.dumps([1] * 9), json.dumps([1] * 1001)]),
    "SO-07 long strings": ({"type": "string", "minLength": 3, "maxLength": 5000},
                           ['"abc"', '"%s"' % ("x" * 5000)], ['"ab"', '"%s"' % ("x" * 5001)]),
    "SO-07 bounds up to a million": (
        {"type": "object", "properties": {
            "a": {"type": "string", "maxLength": 1000000},
            "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1000000}},
         "required": ["a", "b"]}, ['{"a": "x", "b": [true]}'], ['{"a": "x", "b": [1]}']),
    "SO-08 patterns search, at any depth": (
        {"type": "object", "properties": {"l": {"type": "array", "items": {
            "type": "object", "properties": {"c": {"type": "string", "pattern": "b[0-9]"}},
            "required": ["c"]}}}, "required": ["l"]},
        ['{"l": [{"c": "b1"}, {"c": "aab2z"}]}'], ['{"l": [{"c": "b"}]}', '{"l": [{"c": "1b"}]}']),
    "SO-08 patterns are of the decoded text": (
        {"type": "string", "pattern": "^a\"b\\\\$"}, [r'"a\"b\\"'], [r'"ab"', r'"a\"b"']),
    "SO-10 required without properties": ({"type": "object", "required": ["a"]},
                                          ['{"a": 1}', '{"a": {"z": [null]}}'], ["{}", "[]"]),
    "SO-10 an object of anything": ({"type": "object"}, ["{}", '{"a": {"b": [1, "c"]}}'],
                                    ["[]", "1"]),
    "SO-10 items of anything": ({"type": "array"}, ["[]", '[1, "a", {"b": null}]'], ["{}"]),
    "SO-12 letters of every script": (
        {"type": "object", "properties": {"s": {"type": "string", "maxLength": 9}},
         "required": ["s"]},
        ['{"s": "Äöü ß é"}', '{"s": "日本語"}', '{"s": "😀😀"}', '{"s": "\\u00e4"}'],
        ['{"s": "Äöüäöüäöüä"}']),
    "SO-13 declared order, optional ones in place": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"},
                                          "c": {"type": "integer"}}, "required": ["c"]},
        ['{"a": 1, "b": 2, "c": 3}', '{"b": 2, "c": 3}', '{"c": 3}'],
        ['{"c": 3, "a": 1}', '{"a": 1}', '{"c": 3, "z": 1}']),
    "SO-14 what is enforced": (
        {"type": "object", "properties": {
            "n": {"type": "integer", "exclusiveMinimum": 3, "maximum": 10},
            "d": {"type": "string", "format": "date"}}, "required": ["n", "d"],
         "propertyNames": {"maxLength": 1}},
        ['{"n": 4, "d": "2024-02-29"}'],
        ['{"n": 3, "d": "2024-01-01"}', '{"n": 11, "d": "2024-01-01"}',
         '{"n": 4, "d": "2023-13-01"}', '{"n": 4, "d": "x"}']),
}


@pytest.mark.parametrize("name", TAKES)
def test_a_schema_takes_what_it_says(tmp_path, name):
    schema, right, wrong = TAKES[name]
    for texts, result in ((right, "accept"), (wrong, "reject")):
        for text in texts:
            status, verdict, _ = check(tmp_path, "--schema", schema, text)
            assert verdict is not None and verdict["result"] == result, (text[:80], verdict)
            assert (status == 0) == (result == "accept")


def test_choices_are_literal(tmp_path):
    choices = ["1", "10", "a.b", "x*", "(y)", "ä", 'say "hi"']
    for text in choices:
        assert check(tmp_path, "--choice", choices, text)[1]["result"] == "accept", text
    for text in ("", "100", "acb", "x", "xx", "y", "a", "2"):
        assert check(tmp_path, "--choice", choices, text)[1]["result"] == "reject", text


def deep(open_, close, times, inner=""):
    return open_ * times + inner + close * times


HOSTILE = {
    "SO-01 nested alternatives": ("--schema", {"type": "object", "properties": {
        f"p{i}": {"anyOf": [{"oneOf": [{"type": "object", "properties": {
            f"q{j}": {"anyOf": [{"const": k} for k in range(8)]}}} for j in range(6)]}
            for _ in range(6)]} for i in range(12)}}),
    "SO-01 pairs that multiply": ("--schema", {"allOf": [
        {"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(24)]}),
    "SO-02 a pattern that is none": ("--regex", "(["),
    "SO-02 a bound the wrong way round": ("--regex", "a{5,2}"),
    "SO-02 rules that call nobody": ("--ebnf", "root ::= nobody"),
    "SO-04 a schema that is itself": ("--schema", {"$ref": "#"}),
    "SO-04 a circle of references": ("--schema", {"$ref": "#/$defs/a", "$defs": {
        "a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
    "SO-04 rules that call themselves first": ("--ebnf", 'root ::= root "x" | root'),
    "SO-19 brackets in a pattern": ("--regex", deep("(", ")", 60000)),
    "SO-19 brackets in a schema's pattern": ("--schema", {
        "type": "string", "pattern": deep("(", ")", 60000)}),
    "SO-19 brackets in rules": ("--ebnf", "root ::= " + deep("(", ")", 60000, '"x"')),
    "SO-19 a deep schema": ("--schema", None),
    "SO-23 no choices": ("--choice", []),
    "SO-23 an empty choice": ("--choice", [""]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_forms_end_in_an_error_soon(tmp_path, name):
    option, form = HOSTILE[name]
    if form is None:
        form = {"type": "array"}
        text = '{"items":' * 10000 + "{}" + "}" * 10000
        (tmp_path / "form").write_text(text)
        began = time.monotonic()
        done = subprocess.run([os.environ["TF_CTL"], "grammar", "check", "--schema",
                               str(tmp_path / "form")], capture_output=True, text=True, timeout=120)
        status, seconds, said = done.returncode, time.monotonic() - began, done.stderr + done.stdout
    else:
        status, verdict, seconds = check(tmp_path, option, form)
        said = json.dumps(verdict)
    # A refusal with a reason or, where it can be enforced after all, a form; never a crash or a hang.
    assert status in (0, 1, 65) and said, (status, said)
    assert seconds < 60
    if "alternatives" not in name:
        assert status != 0, said


def test_real_and_large_schemas_compile(tmp_path):
    """Hundreds of types that refer to each other, half a megabyte in all."""
    types = {f"T{i}": {"type": "object", "description": "x" * 1200, "properties": {
        f"f{j}": {"$ref": f"#/$defs/T{(i * 7 + j) % 400}"} if j % 3 == 0 else {
            "type": ["string", "integer", "boolean"][j % 3], "description": "y" * 40}
        for j in range(10)}, "additionalProperties": False} for i in range(400)}
    schema = {"$ref": "#/$defs/T0", "$defs": types}
    assert len(json.dumps(schema)) > 700_000
    status, verdict, seconds = check(tmp_path, "--schema", schema,
                                     '{"f0": {"f1": 5}, "f2": true}')
    assert status == 0 and verdict["result"] == "accept", verdict
    assert seconds < 30
