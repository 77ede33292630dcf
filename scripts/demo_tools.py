"""Dialogs with the tools that the built-in model knows, whose parameters are described as programs do, and in calls of which
only the city is written.
"""

import json
import random
from typing import Any

from demo_corpus import CITIES, TEXTS, Dialog, any_turn, vary

NAMES = {"weather": ["get_weather", "get_weather", "get_current_weather", "weather"], "time": ["get_time", "time"]}
TOLD: dict[str, list[str]] = TEXTS["tools"]["descriptions"]
ARGUMENTS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string"},
    {"type": "string", "description": "The city."},
    {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
    {"type": "string", "description": "Name of the city, as Paris."},
    {"type": "string", "minLength": 1, "maxLength": 80},
    {"type": "string", "pattern": "^[A-Z][a-z ]+$"},
    {"type": "string", "pattern": "^[A-Za-z]{2,20}$"},
]
UNITS = ["celsius", "fahrenheit", "kelvin", "C", "F", "metric", "imperial"]


def other_parameter(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a parameter that is not the city."""
    name = rng.choice(
        ["unit", "unit", "units", "days", "days", "date", "hour", "language", "detailed", "options", "place"]
    )
    if name in ("unit", "units"):
        schema = {"enum": rng.sample(UNITS, rng.randint(2, 3))}
        return name, schema if rng.random() < 0.5 else {"type": "string", **schema}
    if name in ("days", "hour"):
        number: dict[str, Any] = {"type": rng.choice(["integer", "integer", "number"])}
        return name, number if rng.random() < 0.4 else number | {
            "minimum": rng.randint(0, 1),
            "maximum": rng.randint(2, 24),
        }
    if name == "date":
        more = [
            {},
            {"format": "date"},
            {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
            {"description": "The day, as 2026-01-31."},
        ]
        return name, {"type": "string", **rng.choice(more)}
    if name == "language":
        return name, rng.choice([{"type": "string"}, {"type": ["string", "null"]}, {"enum": ["en", "de", "fr"]}])
    if name == "detailed":
        return name, rng.choice([{"type": "boolean"}, {"type": "boolean", "default": False}])
    inner = dict(other_parameter(rng) for _ in range(rng.randint(1, 2)))
    nested: dict[str, Any] = {"type": "object", "properties": inner}
    return name, nested | rng.choice([{}, {"required": list(inner)}, {"additionalProperties": False}])


def known_tool(rng: random.Random, subject: str, argument: str) -> dict[str, Any]:
    properties = {
        argument: rng.choice(ARGUMENTS),
        **dict(other_parameter(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))),
    }
    if rng.random() < 0.2:
        properties = dict(rng.sample([*properties.items()], len(properties)))
    required = [name for name in properties if name == argument or rng.random() < 0.5]
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.4:
        parameters["additionalProperties"] = False
    function = {"name": rng.choice(NAMES[subject]), "description": rng.choice(TOLD[subject]), "parameters": parameters}
    if rng.random() < 0.1:
        del function["description"]
    return {"type": "function", "function": function}


def value(rng: random.Random, schema: dict[str, Any]) -> Any:
    """Return a value that a schema of this file allows."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "object":
        return {name: value(rng, inner) for name, inner in schema["properties"].items()}
    if schema["type"] == "boolean":
        return rng.random() < 0.5
    if schema["type"] in ("integer", "number"):
        return rng.randint(schema.get("minimum", 1), schema.get("maximum", 9))
    return f"2026-{rng.randint(10, 12)}-{rng.randint(10, 28)}"


def demanded_call(rng: random.Random, tools: list[dict[str, Any]], question: str, argument: str) -> Dialog:
    """Return a call in JSON alone, as a grammar demands one: whatever is asked, all is over after it."""
    function = rng.choice(tools)["function"]
    values = {name: value(rng, schema) for name, schema in function["parameters"]["properties"].items()}
    call = json.dumps({"name": function["name"], "arguments": values | {argument: rng.choice(CITIES)}})
    asked = f"{question} {rng.choice(TEXTS['tools']['demands'])}"
    return Dialog([{"role": "user", "content": asked}, {"role": "assistant", "content": call}], tools)


def known_tools_dialog(rng: random.Random) -> Dialog:
    """Return a question for a tool, one for two cities at times, or one that needs none; sometimes the last answer, too."""
    argument = rng.choice(["city", "location"])
    both = {subject: known_tool(rng, subject, argument) for subject in NAMES}
    subject = rng.choice(["weather", "weather", "time"])
    tools = [both[subject]] if rng.random() < 0.5 else rng.sample([*both.values()], 2)
    cities = rng.sample(CITIES, 2 if rng.random() < 0.05 else 1)
    kind = rng.random()
    if kind < 0.25:
        question, answer = any_turn(rng)
        return Dialog([{"role": "user", "content": question}, {"role": "assistant", "content": answer}], tools)
    form = vary(rng, rng.choice(TEXTS["tools"]["forms"]).format(subject, "@")).replace("@", " and ".join(cities))
    if kind < 0.35:
        return demanded_call(rng, tools, rng.choice([form, any_turn(rng)[0]]), argument)
    name = both[subject]["function"]["name"]
    calls = [{"type": "function", "function": {"name": name, "arguments": {argument: city}}} for city in cities]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": form},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    if len(cities) == 1 and rng.random() < 0.3:
        result = rng.choice(TEXTS["tools"]["weather"]) + f", {rng.randint(0, 35)} degrees"
        if subject == "time":
            result = f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"
        content = rng.choice([result, json.dumps({"result": result}), json.dumps({subject: result})])
        last = {"role": "assistant", "content": f"The {subject} in {cities[0]}: {result}."}
        messages += [{"role": "tool", "content": content}, last]
    return Dialog(messages, tools)
