"""A constraint of a JSON Schema that engines would drop is found, and xgrammar does enforce each one that is not."""

import json
from itertools import product

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.api import schema_constraints
from data_plane.gateway.api.schema_constraints import FORMATS, unenforced
from tests.fixtures.late_import import LateModule

xgrammar = LateModule("xgrammar")

S = {"type": "string"}
ONE_OF_MARKED = [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]


def pattern(text: str) -> dict:
    return {**S, "pattern": text}


def found(schema: dict) -> list[str]:
    return [".".join(map(str, each.path)) for each in unenforced(schema)]


PATTERNS = {
    "lookahead": (r"^(?!z)[a-z]{3}$", "zmz"),
    "positive lookahead": ("^(?=a)[a-z]{3}$", "zmz"),
    "^ inside": ("a^b", "ab"),
    "$ inside": ("a$b", "ab"),
    r"\A": (r"\Aa", "Aa"),
    r"\z": (r"a\z", "az"),
    r"\p in a class": (r"^[\p{L}]$", "{"),
    r"\h": (r"\h", "h"),
    "a quote": ('^"$', '"'),
    r"\x22": (r"^\x22$", '"'),
    r"\u0022": (r"^\u0022$", '"'),
    "a backslash": (r"^\\$", "\\"),
    r"\n": (r"^\n$", "\n"),
    r"\t": (r"^\t$", "\t"),
}
"""Patterns with a text that xgrammar would let a model write as it is, although it violates them or is no JSON."""

DROPPED = {
    "pattern without type": ({"pattern": "^a$"}, "pattern", '"b"'),
    "length beside a pattern": ({**pattern("^a*$"), "minLength": 2}, "minLength", '"a"'),
    "length beside a format": ({**S, "format": "email", "maxLength": 3}, "maxLength", '"a@b.co"'),
    "pattern beside a format": ({**S, "format": "date", "pattern": "^2"}, "pattern", '"1999-01-01"'),
    "format that is not known": ({**S, "format": "idn-email"}, "format", '"x"'),
    "format without type": ({"format": "date"}, "format", '"x"'),
    "minimum without type": ({"minimum": 3}, "minimum", "2"),
    "multiple of a number": ({"type": "number", "multipleOf": 0.5}, "multipleOf", "0.3"),
    "multiple with a bound": ({"type": "integer", "multipleOf": 7, "minimum": 3}, "multipleOf", "8"),
    "large multiple": ({"type": "integer", "multipleOf": 100_000}, "multipleOf", "7"),
    "unique items": ({"type": "array", "items": S, "uniqueItems": True}, "uniqueItems", '["a","a"]'),
    "contains": ({"type": "array", "items": S, "contains": {"const": "a"}}, "contains", "[]"),
    "required beyond the properties": (
        {"type": "object", "properties": {"a": S}, "required": ["z"]},
        "required",
        '{"a":"x"}',
    ),
    "required alone": ({"required": ["z"]}, "required", "{}"),
    "names beside properties": (
        {"type": "object", "properties": {"b": S}, "propertyNames": {"pattern": "^a$"}},
        "propertyNames",
        '{"b":"x"}',
    ),
    "length and pattern of names": (
        {"type": "object", "propertyNames": {"pattern": "^a+$", "maxLength": 2}, "additionalProperties": S},
        "propertyNames.maxLength",
        '{"aaa":"x"}',
    ),
    "dependentRequired": (
        {"type": "object", "properties": {"a": S, "b": S}, "dependentRequired": {"a": ["b"]}},
        "dependentRequired",
        '{"a":"x"}',
    ),
    "if": ({"type": "object", "properties": {"a": S}, "if": {}, "then": {"required": ["a"]}}, "if", "{}"),
    "not": ({**S, "not": {"const": "a"}}, "not", '"a"'),
    "allOf": ({"allOf": [S, {"maxLength": 1}]}, "allOf", "1"),
    "beside allOf": ({"type": "object", "properties": {"a": S}, "allOf": [{"required": ["a"]}]}, "properties", "{}"),
    "beside anyOf": ({"anyOf": [{"required": ["a"]}], "properties": {"a": S}}, "properties", "{}"),
    "type beside anyOf": ({**S, "anyOf": [{"maxLength": 1}]}, "type", "1"),
    "beside $ref": ({"$defs": {"A": S}, "$ref": "#/$defs/A", "maxLength": 1}, "maxLength", '"aa"'),
    "beside enum": ({"enum": ["a", "b"], "pattern": "^a$"}, "pattern", '"b"'),
    "type beside enum": ({**S, "enum": ["a", 1]}, "type", "1"),
    "oneOf": ({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 5}]}, "oneOf", "3"),
    **{f"pattern with {name}": (pattern(text), "pattern", f'"{bad}"') for name, (text, bad) in PATTERNS.items()},
}

REFUSED_BY_THE_COMPILER = {
    "lookbehind": (pattern("^a(?<!z)b$"), "pattern"),
    "backreference": (pattern(r"^(a)\1$"), "pattern"),
    "named backreference": (pattern(r"^(?<x>a)\k<x>$"), "pattern"),
    r"\b": (pattern(r"\ba"), "pattern"),
    r"\p": (pattern(r"^\p{L}$"), "pattern"),
    "flags of a group": (pattern("(?i:a)"), "pattern"),
    "items as a list": ({"type": "array", "items": [S]}, "items"),
    "minItems alone": ({"type": "array", "minItems": 1}, "minItems"),
    "minProperties alone": ({"type": "object", "minProperties": 1}, "minProperties"),
}

ENFORCED = {
    "pattern": (pattern(r"^\+?[1-9]\d{1,14}$"), '"0"'),
    "anchors of branches": (pattern("^a$|^b$"), '"ab"'),
    "anchors in a group": (pattern("(^a$|b)"), '"c"'),
    "escapes": (pattern(r"^[\w.-]+@(?:\x41|\u0042)\.[a-z]{2,}?$"), '"a@C.co"'),
    "named group": (pattern("^(?P<x>a)$"), '"b"'),
    "(?i)": (pattern("(?i)^ab$"), '"xx"'),
    "lengths": ({**S, "minLength": 2, "maxLength": 3}, '"a"'),
    "an unknown mark": ({**S, "format": "password", "maxLength": 1}, '"aa"'),
    "pydantic's positive number": ({"exclusiveMinimum": 0, "title": "N", "type": "number"}, "-1.5"),
    "multiple": ({"type": "integer", "multipleOf": 5}, "3"),
    "a range": ({"type": "number", "minimum": 0, "maximum": 1.5}, "1.6"),
    "optional": ({"anyOf": [{**S, "format": "uuid"}, {"type": "null"}], "default": None}, "1"),
    "items": ({"type": "array", "items": {}, "minItems": 2, "uniqueItems": False}, "[1]"),
    "a tuple": ({"type": "array", "prefixItems": [S], "items": False}, '["a","b"]'),
    "an object": ({"type": "object", "properties": {"a": S}, "required": ["a"], "additionalProperties": False}, "{}"),
    "a map": ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}, '{"a":1,"b":2}'),
    "names of a map": ({"type": "object", "propertyNames": {"enum": ["x"]}, "additionalProperties": S}, '{"b":"x"}'),
    "a reference": (
        {"$defs": {"A": {**S, "enum": ["x"]}}, "allOf": [{"$ref": "#/$defs/A"}], "description": "d"},
        '"y"',
    ),
    "marked schemas": ({"type": "object", "oneOf": ONE_OF_MARKED, "discriminator": {"propertyName": "k"}}, '{"k":"c"}'),
    "oneOf types": ({"oneOf": [S, {"type": "integer"}]}, "null"),
    "enum": ({**S, "enum": ["a", "b"], "x-order": 1}, '"c"'),
    "words as properties": (
        {"type": "object", "properties": {"not": S, "pattern": S, "if": S}, "required": ["not"]},
        "{}",
    ),
    **{
        form: ({"type": ["string", "null"], "format": form}, '"\u00e9 {"')
        for form in sorted(FORMATS - {"json-pointer"})
    },
    "json-pointer": ({**S, "format": "json-pointer"}, '"a"'),
}


def grammar(schema: dict) -> object:
    form = {"type": "json_schema", "json_schema": schema, "style": "json", "max_whitespace_cnt": 8}
    return xgrammar.Grammar.from_structural_tag(json.dumps({"type": "structural_tag", "format": form}))


def accepts(schema: dict, answer: str) -> bool:
    from xgrammar.testing import _is_grammar_accept_string

    return _is_grammar_accept_string(grammar(schema), answer)


@pytest.mark.parametrize("case", DROPPED)
def test_a_constraint_that_xgrammar_drops_is_found(case):
    schema, key, violation = DROPPED[case]
    assert key in found(schema)
    assert accepts(schema, violation), "xgrammar enforces it now: let it pass"


@pytest.mark.parametrize("case", REFUSED_BY_THE_COMPILER)
def test_what_xgrammar_refuses_is_named_also_where_constraints_may_be_ignored(case):
    schema, key = REFUSED_BY_THE_COMPILER[case]
    with pytest.raises(InvalidRequest) as refused:
        schema_constraints.check("p", {"anyOf": [schema]}, enforced=False, index=".{}", fix="")
    assert (refused.value.code, refused.value.param) == ("schema_invalid", f"p.anyOf.0.{key}")
    with pytest.raises(RuntimeError):
        grammar(schema)


@pytest.mark.parametrize("case", ENFORCED)
def test_a_constraint_that_xgrammar_enforces_passes(case):
    schema, violation = ENFORCED[case]
    assert found(schema) == []
    assert not accepts(schema, violation)


def test_an_error_names_the_constraint_its_place_and_the_fix():
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, pattern("^(?!z)a$")]}}}
    with pytest.raises(InvalidRequest) as refused:
        schema_constraints.check("f.schema", schema, enforced=True, index="[{}]", fix=", or set `strict` to false")
    assert refused.value.param == "f.schema.properties.a.anyOf[1].pattern"
    assert refused.value.message == (
        "`f.schema.properties.a.anyOf[1].pattern` is not enforced here: engines ignore lookahead. "
        "Change or remove it, or set `strict` to false."
    )
    schema_constraints.check("f.schema", schema, enforced=False, index="[{}]", fix="")


ODD = [None, 1, "x", [], [[]], {}, [{}], {"a": 1}, True, [None]]
KEYWORDS = sorted((schema_constraints._ASSERTIONS | {*schema_constraints.UNENFORCED, "$defs"}) - {"$ref"})


def test_a_schema_with_odd_values_breaks_nothing():
    for at, (first, second) in enumerate(product(KEYWORDS, KEYWORDS)):
        value, other = ODD[at % 10], ODD[at % 7]
        found({first: value, second: other, "type": "object"})
        found({"oneOf": [{first: value}, {second: other}], "properties": {"a": {first: other}}})


def test_schemas_that_refer_to_one_another_are_read_once():
    """Without memory, each level would double the work."""
    levels = {f"d{n}": {"type": "object", "anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    schema = {"$defs": {**levels, "d60": {"type": "object"}}, "oneOf": [{"$ref": "#/$defs/d0"}] * 3}
    assert found(schema) == ["oneOf"]
