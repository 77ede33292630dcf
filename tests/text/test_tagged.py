"""Which arguments a schema describes one by one, and how each is written between tags."""

import re

import pytest

from node.core.errors import BadRequest
from node.text.tagged import Tags, arguments_of, read_arguments


def written(schema):
    """How an argument of this schema is written: its words, and whether it may be null."""
    (argument,) = arguments_of({"type": "object", "properties": {"x": schema}})
    return argument.words, argument.nullable


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "title": "X", "description": "any", "default": "", "examples": ["a"]},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string", "description": "any"}, {"type": "null"}], "default": None},
    ],
)
def test_texts(schema):
    assert written(schema) == ((), schema.get("type") != "string")


def test_words():
    assert written({"enum": ["a", "b c"]}) == (["a", "b c"], False)
    assert written({"type": "string", "enum": ["a"]}) == (["a"], False)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "string", "pattern": "^a"},
        {"type": "string", "maxLength": 5},
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        {"enum": ["a", 1]},
        {"enum": ["a\nb"]},
        {"enum": ["</x>"]},
        {"enum": []},
        {"$ref": "#/$defs/x"},
        {},
        True,
        False,
    ],
)
def test_all_else_is_json(schema):
    assert written(schema) == (None, False)


def test_definitions_and_order_stay():
    shared = {"$defs": {"n": {"type": "integer"}}}
    parameters = {"properties": {"b": {"$ref": "#/$defs/n"}, "a": {}}, "required": ["a"], "additionalProperties": False}
    first, second = arguments_of({**parameters, **shared})
    assert (first.name, first.required, first.schema) == ("b", False, {"$ref": "#/$defs/n", **shared})
    assert (second.name, second.required) == ("a", True)
    assert arguments_of({"type": "object"}) == []


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"properties": []}, "'properties', an object"),
        ({"required": {}}, "a list of names"),
        ({"required": [["x"]]}, "a list of names"),
        ({"properties": {}, "required": ["x"]}, "required 'x' is not described"),
        ({"additionalProperties": {"type": "string"}}, "'additionalProperties' of all can't be followed"),
        ({"allOf": []}, "'allOf' of all can't be followed"),
        ({"properties": {"a>b": {}}}, "can't write an argument with the name 'a>b'"),
        ({"properties": {"": {}}}, "can't write an argument with the name ''"),
    ],
)
def test_refused(parameters, why):
    with pytest.raises(BadRequest, match=re.escape(why)):
        arguments_of(parameters)


def test_reading():
    schema = {
        "text": {"type": "string"},
        "zip": {"type": "string", "minLength": 5},
        "maybe": {"type": ["string", "null"]},
        "n": {},
    }
    known, tags = arguments_of({"properties": schema}), Tags(re.compile(r"<(\w+)>"), ";")
    given = 'f(<text>null;<zip>01234;<zip>"01235";<maybe>null;<n>{"a": [1]};)'
    found, end = read_arguments(given, 2, tags, known)
    assert found == {"text": "null", "zip": "01235", "maybe": None, "n": {"a": [1]}}
    assert given[end:] == ")"
    assert read_arguments("<zip>12345;", 0, tags, known) == ({"zip": "12345"}, 11)
    assert read_arguments('<n>{"a": "1;2"};<zip>"12;45";<text>a"b;', 0, tags, known)[0] == {
        "n": {"a": "1;2"},
        "zip": "12;45",
        "text": 'a"b',
    }
    for wrong in ("<other>1;", "<n>x;", "<text>x", '<n>{"a": "1;2"', '<n>"1;2'):
        with pytest.raises(ValueError):
            read_arguments(wrong, 0, tags, known)


def test_reading_of_what_no_tag_ends():
    begin = re.compile(r"(?:,)?(\w+):")
    known = arguments_of({"properties": {"text": {"type": "string"}, "n": {}, "maybe": {"type": ["string", "null"]}}})
    given = '{text:~a,n:5}~,n:{"a": "},~"},maybe:null}'
    assert read_arguments(given, 1, Tags(begin, quote="~", unquote="~"), known) == (
        {"text": "a,n:5}", "n": {"a": "},~"}, "maybe": None},
        len(given) - 1,
    )
    assert read_arguments('n:["~"],other:"\\ud83d\\ude00")', 0, Tags(begin), None) == ({"n": ["~"], "other": "😀"}, 28)
    for wrong in ("text:~a", "n:x", "other:1"):
        with pytest.raises(ValueError):
            read_arguments(wrong, 0, Tags(begin, quote="~", unquote="~"), known)


def test_reading_of_texts_that_may_be_quoted():
    tags = Tags(re.compile(r"<(\w+)>"), "</>", "[[", "]]")
    known = arguments_of({"properties": {"a": {"type": "string"}, "b": {"type": "string"}, "n": {}}})
    assert read_arguments("<a>[[ <x> ]]</><n>[[5]]</><b>[[x</>", 0, tags, known)[0] == {
        "a": " <x> ",
        "b": "[[x",
        "n": 5,
    }
