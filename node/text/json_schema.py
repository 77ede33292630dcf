"""Makes a JSON schema one that llguidance follows, and weak models finish.

In two points it is stricter than the schema: white space is that of `json.dumps`, and anything that the schema leaves unbounded by
omission (further properties, number of digits) is bounded.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
EXACT = 2**53 - 1
"""Largest integer that is exact in all JSON parsers (RFC 8259, section 6)."""
FINE, COARSE = 1e-9, 1e-3
"""Decimal step of bounded numbers; ranges and bounds smaller than COARSE are not rounded to it."""
BOUNDS = {("minimum", "exclusiveMinimum"): -EXACT, ("maximum", "exclusiveMaximum"): EXACT}
TIMES = ("time", "date-time", "duration")
"""Formats of any number of digits, which weak models write forever."""
FEW_DIGITS = "^[0-9]{0,9}([^0-9]+[0-9]{0,9})*$"

COMBINING = ("properties", "$ref", "anyOf", "oneOf", "allOf")
SCHEMAS = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def prepared(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """A schema as llguidance takes it. `strict`: what llguidance does not know is an error."""
    options = {**STYLE, "lenient": not strict}
    # Where several descriptions of one object are combined, closing one would forbid properties of another.
    combines = any(
        sum(key in each for key in COMBINING) > 1 or (isinstance(each.get("allOf"), list) and len(each["allOf"]) > 1)
        for each in _objects(schema)
    )
    return {**_tightened(schema, close=not combines), "x-guidance": options}


def _tightened(schema: Any, *, close: bool) -> Any:
    """Add missing bounds to a schema. `close`: forbid further properties in objects that do not mention them."""
    if not isinstance(schema, Mapping):
        return schema
    # llguidance refuses unknown values of `$schema`, which has no effect otherwise.
    tight = {key: value for key, value in schema.items() if key != "$schema"}
    for key in tight.keys() & set(SCHEMAS):
        tight[key] = _tightened(tight[key], close=close)
    for key in tight.keys() & set(SCHEMA_LISTS):
        if isinstance(tight[key], list):
            tight[key] = [_tightened(each, close=close) for each in tight[key]]
    for key in tight.keys() & set(SCHEMA_MAPS):
        if isinstance(tight[key], Mapping):
            tight[key] = {name: _tightened(each, close=close) for name, each in tight[key].items()}
    _limit_names(tight)
    if close and _may_be_closed(tight):
        tight["additionalProperties"] = False
    if tight.get("type") in ("integer", "number") and not tight.keys() & {"enum", "const", "multipleOf"}:
        _bound(tight)
    has_digits = tight.get("format") in TIMES and not tight.keys() & {"enum", "const"}
    if has_digits and isinstance(more := tight.get("allOf", []), list):
        tight["allOf"] = [*more, {"pattern": FEW_DIGITS}]
    return tight


def _limit_names(schema: dict[str, Any]) -> None:
    """Replace `propertyNames` by `patternProperties`, which llguidance knows, where they mean the same."""
    match schema.get("propertyNames"):
        case {"enum": list(names), **more} if all(isinstance(name, str) for name in names):
            pattern = f"^({'|'.join(map(re.escape, names))})$"
        case {"pattern": str(pattern), **more}:
            pass
        case {"type": "string", **more}:
            pattern = ""
        case _:
            return
    if more.keys() - {"type", "title", "description"} or "patternProperties" in schema:
        return
    del schema["propertyNames"]
    others = schema.get("additionalProperties", True)
    if pattern and others is not False:
        schema |= {"patternProperties": {pattern: others}, "additionalProperties": False}


def _may_be_closed(schema: Mapping[str, Any]) -> bool:
    if schema.keys() & {"additionalProperties", "patternProperties", "unevaluatedProperties"}:
        return False
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    return all(name in properties for name in required if isinstance(name, str))


def _bound(schema: dict[str, Any]) -> None:
    """Bound the digits of integers, and of numbers with a bound; other numbers may need an exponent."""
    given = [schema[key] for sides in BOUNDS for key in sides if key in schema]
    if not all(isinstance(bound, int | float) and abs(bound) < EXACT for bound in given):
        return
    if schema["type"] == "number":
        fine = any(0 < abs(bound) < COARSE for bound in given) or (len(given) > 1 and max(given) - min(given) < COARSE)
        if fine or not given:
            return
        schema["multipleOf"] = FINE
    for sides, bound in BOUNDS.items():
        if not schema.keys() & set(sides):
            schema[sides[0]] = bound


def _objects(value: Any) -> Iterable[Mapping[str, Any]]:
    """All objects in a JSON value, at any depth."""
    if isinstance(value, Mapping):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _objects(item)
