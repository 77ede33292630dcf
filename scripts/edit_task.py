"""A task of every day: a file of 300 lines, and the same file with one function renamed. It is made from a seed."""

import random
from collections.abc import Iterator

SEED = 1
LINES = 300
OLD, NEW = "load", "read_file"
REQUEST = f"Rename the function {OLD} to {NEW}."

_VERBS = [
    "add",
    "check",
    "clean",
    "close",
    "copy",
    "count",
    "fetch",
    "find",
    "join",
    "merge",
    "move",
    "open",
    "parse",
    "print",
    "sort",
    "split",
    "store",
    "trim",
]
_THINGS = [
    "block",
    "card",
    "color",
    "date",
    "event",
    "field",
    "group",
    "item",
    "label",
    "line",
    "list",
    "name",
    "node",
    "page",
    "path",
    "range",
    "row",
    "size",
]
_NAMES = ["a", "b", "c", "key", "left", "limit", "name", "part", "right", "step", "text", "value", "x", "y"]


def messages() -> list[dict[str, str]]:
    """The request, as a chat."""
    return [{"role": "user", "content": f"{REQUEST}\n\n{source()}"}]


def source(seed: int = SEED) -> str:
    """A file of LINES lines, in which functions call each other, and several of them OLD."""
    rng = random.Random(seed)
    names = [OLD, *rng.sample([f"{verb}_{thing}" for verb in _VERBS for thing in _THINGS], 60)]
    lines: list[str] = []
    for place, name in enumerate(names):
        lines += _function(rng, name, names[:place])
    return "\n".join(lines[:LINES]) + "\n"


def renamed() -> str:
    """The file after the task."""
    return source().replace(f"{OLD}(", f"{NEW}(")


def _function(rng: random.Random, name: str, others: list[str]) -> Iterator[str]:
    first, second, result = rng.sample(_NAMES, 3)
    yield f"def {name}({first}, {second}):"
    for _ in range(rng.randint(1, 4)):
        callee = rng.choice([OLD, *others]) if others and rng.random() < 0.7 else ""
        value = f"{callee}({first}, {second})" if callee else f"{first} + {rng.randrange(100)}"
        yield f"    {result} = {value}"
        if rng.random() < 0.3:
            yield f"    if {result} > {rng.randrange(100)}:"
            yield f"        return {second}"
    yield f"    return {result}"
    yield ""
