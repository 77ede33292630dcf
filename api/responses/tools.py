"""Tools of the Responses API, as chat's functions and back.

Functions may be in a namespace, as those of an MCP server; chat has one list of names, so the namespace becomes the beginning of the name.
Tools that OpenAI would run itself have no counterpart. Coding agents send them beside their functions, whether the server has them or
not: the model is not told of them.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from api.http.errors import Unsupported
from api.http.json_object import Json
from node.core.errors import BadRequest

FUNCTION = ("name", "description", "parameters", "strict")


class Place(NamedTuple):
    """Where the client's functions have a name."""

    namespace: str | None
    name: str


class PlacedFunction(NamedTuple):
    """A function, or a custom tool, that a model can call."""

    place: Place
    for_chat: Json
    """The tool in chat."""
    param: str
    """Where the request has it, such as `tools[2]`; chat numbers only those that it has."""


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[PlacedFunction]:
    """The functions of tools. Raises Unsupported if all are of other kinds: their client relies on them."""
    found = list(_functions(tools))
    if tools and not found:
        kind = reprlib.repr(tools[0].get("type"))
        raise Unsupported(f"Tools of type {kind} are not supported.", param="tools[0].type")
    return found


def flat_name(place: Place) -> str:
    """The name of a function in chat."""
    return place.name if place.namespace is None else f"{place.namespace.rstrip('_')}__{place.name}"


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[PlacedFunction]:
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        match tool:
            case {"type": "function"}:
                yield PlacedFunction(Place(None, str(tool.get("name", ""))), _function(tool), param)
            case {"type": "custom"}:
                yield PlacedFunction(Place(None, str(tool.get("name", ""))), _custom(tool), param)
            case {"type": "namespace", "name": str(namespace), "tools": list(members)}:
                for place_in_it, member in enumerate(members):
                    if isinstance(member, dict) and member.get("type") == "function":
                        name, chat = member.get("name"), _function(member)
                        place = Place(namespace, str(name or ""))
                        if name and isinstance(name, str):  # else chat refuses it
                            chat["function"]["name"] = flat_name(place)
                        yield PlacedFunction(place, chat, f"{param}.tools[{place_in_it}]")
            case {"type": "namespace"}:
                raise BadRequest("A namespace needs a name and a list of tools.", param=param)
            case {"type": str()}:
                continue
            case _:
                raise BadRequest("A tool needs a type.", param=f"{param}.type")


def _function(tool: Mapping[str, Any]) -> Json:
    """A function in chat."""
    return {"type": "function", "function": {name: tool[name] for name in FUNCTION if tool.get(name) is not None}}


def _custom(tool: Mapping[str, Any]) -> Json:
    """A custom tool in chat, where the parts of a grammar are one level deeper."""
    custom = {name: tool[name] for name in ("name", "description", "format") if tool.get(name) is not None}
    match custom.get("format"):
        case {"type": "grammar", **parts}:
            custom["format"] = {"type": "grammar", "grammar": parts}
    return {"type": "custom", "custom": custom}
