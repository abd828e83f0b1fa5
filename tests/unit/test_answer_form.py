"""The form that answers what a server asks, of schemas that may say anything."""

from typing import Any

import pytest

from tarsy_tasks.dashboard.answer_form import FormField, build_form, read_form


def nothing(_: str) -> list[str]:
    return []


def field_of(rules: Any, name: str = "size", required: Any = ()) -> FormField:
    schema = {"type": "object", "properties": {name: rules}, "required": required}
    [question] = build_form([{"name": "q", "requested_schema": schema}], nothing)
    [field] = question.fields
    return field


@pytest.mark.parametrize(
    ("rules", "kind", "hint"),
    [
        ({"type": "string", "maxLength": 5}, "text", "at most 5 characters"),
        ({"type": "string", "format": "date"}, "date", "date"),
        ({"type": "string", "format": "date-time"}, "text", "date-time"),
        ({"type": "integer", "minimum": 0, "maximum": 9}, "number", "a whole number, at least 0, at most 9"),
        ({"type": "boolean"}, "choice", ""),
        ({"enum": [1, 2]}, "choice", ""),
        ({"type": "array", "items": {"anyOf": [{"const": "a"}]}}, "choices", ""),
        ({"type": "object"}, "text", "object, as JSON"),
        ({"type": "string", "format": "password"}, "password", "password"),
        ({}, "text", ""),
        (True, "text", ""),
        (7, "text", ""),
        ({"type": ["null", "string"], "minimum": True, "enum": "no list"}, "text", ""),
        ({"type": ["integer", "null"]}, "number", "a whole number"),
        ({"oneOf": []}, "text", ""),
        ({"oneOf": [{"type": "string"}, 7]}, "text", ""),
        ({"enum": [None, "a"], "enumNames": ["too few"]}, "choice", ""),
    ],
)
def test_each_schema_has_a_control(rules: Any, kind: str, hint: str) -> None:
    field = field_of(rules)
    assert (field.kind, field.hint) == (kind, hint)


@pytest.mark.parametrize("name", ["password", "apiKey", "auth_token"])
def test_a_field_that_asks_for_a_secret_is_not_shown(name: str) -> None:
    [question] = build_form([{"requested_schema": {"properties": {name: {"type": "string"}}}}], lambda _: ["typed"])
    assert (question.fields[0].kind, question.fields[0].values) == ("password", ())


def test_what_has_a_default_is_not_required() -> None:
    assert field_of({"type": "string"}, required=["size"]).is_required
    assert not field_of({"type": "string", "default": ""}, required=["size"]).is_required
    assert not field_of({"type": "string"}, required="size").is_required
    assert field_of({"enum": ["a"], "enumNames": ["An A"], "default": "a"}).default == "An A"
    assert field_of({"type": "boolean", "default": False}).default == "no"
    assert field_of({"type": "array", "items": {"enum": ["a", "b"]}, "default": ["a", "b"]}).default == "a, b"


@pytest.mark.parametrize("question", [{}, {"requested_schema": None}, {"requested_schema": {"properties": []}}])
def test_a_question_without_fields_has_an_empty_form(question: dict[str, Any]) -> None:
    [found] = build_form([question], nothing)
    assert found.fields == ()
    assert read_form([found], nothing) == {"": {}}


@pytest.mark.parametrize(("url", "host"), [("https://a@b.example/", "b.example"), ("https://[", ""), ("x", "")])
def test_the_host_of_a_page_is_that_of_browsers(url: str, host: str) -> None:
    [question] = build_form([{"mode": "url", "url": url}], nothing)
    assert question.host == host


def test_names_of_servers_are_no_names_of_the_page() -> None:
    properties = {"digest": {"type": "string"}, "decision": {"type": "string"}, 'x"y': {"enum": ["1"]}}
    questions = [{"name": "one", "requested_schema": {"properties": properties}}, {"name": "two"}]
    form = build_form(questions, nothing)
    assert [field.key for field in form[0].fields] == ["answer.0.0", "answer.0.1", "answer.0.2"]
    entered = {"answer.0.0": ["a"], "answer.0.1": [""], "answer.0.2": ["1", "2"], "answer.9.9": ["other"]}
    found = read_form(form, lambda key: entered.get(key, []))
    assert found == {"one": {"digest": "a", 'x"y': "1"}, "two": {}}
