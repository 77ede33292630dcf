"""Text that the built-in model learns to pass over: tools, prompts and earlier turns that have nothing to do with a
question. Chat programs and coding agents send thousands of tokens of it.
"""

import json
import random
from typing import Any

from demo_corpus import FALLBACK, KINDS, STORIES, TEXTS, WORDS, Dialog, any_turn, dialog, invented_word, vary
from demo_tools import known_tools_dialog

TYPES: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer", "minimum": 1, "default": 10},
    {"type": "number"},
    {"type": "boolean", "default": False},
    {"type": "array", "items": {"type": "string"}},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    {"type": "string", "enum": ["asc", "desc"]},
    {"type": "object", "properties": {"id": {"type": "string"}}, "additionalProperties": False},
]
VERBS: list[str] = TEXTS["filler"]["verbs"].split()
OBJECTS: list[str] = TEXTS["filler"]["objects"].split()
HEADINGS: list[str] = TEXTS["filler"]["headings"].split()


def word(rng: random.Random) -> str:
    return rng.choice(WORDS) if rng.random() < 0.7 else invented_word(rng)


def sentence(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return str(rng.choice(TEXTS["facts"])["answer"])
    if kind < 0.25:
        language = rng.choice([*STORIES])
        hero = rng.choice(STORIES[language]["heroes"])
        text: str = rng.choice(STORIES[language]["plots"]).format_map(hero)
        return text.split(". ", maxsplit=1)[0] + "."
    words = [word(rng) for _ in range(rng.randint(3, 18))]
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words)), str(rng.randint(0, 2030)))
    return " ".join(words).capitalize() + rng.choice([".", ".", ".", ":", "?", "!"])


def name(rng: random.Random) -> str:
    verb = rng.choice(VERBS) if rng.random() < 0.8 else word(rng)
    other = rng.choice(OBJECTS) if rng.random() < 0.8 else word(rng)
    return rng.choice(["{}_{}", "{}_{}", "{}-{}", "{}{}"]).format(verb, other)


def unknown_tool(rng: random.Random) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 6])):
        told = {"description": sentence(rng)} if rng.random() < 0.8 else {}
        argument = rng.choice([*OBJECTS, "query", "id", "content", "count", "limit"])
        properties[argument if rng.random() < 0.7 else name(rng)] = rng.choice(TYPES) | told
    required = [argument for argument in properties if rng.random() < 0.5]
    parameters = {"type": "object", "properties": properties, "required": required}
    description = " ".join(sentence(rng) for _ in range(rng.choice([1, 1, 2, 3, 5])))
    function = {"name": name(rng), "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def long_prompt(rng: random.Random, length: int) -> str:
    """Return headings, paragraphs, lists, tags and JSON, of some `length` characters."""
    text = ""
    while len(text) < length:
        kind = rng.random()
        if kind < 0.15:
            text += f"{'#' * rng.randint(1, 3)} {rng.choice(HEADINGS)} {word(rng)}\n"
        elif kind < 0.4:
            text += "".join(f"- {sentence(rng)}\n" for _ in range(rng.randint(1, 5)))
        elif kind < 0.5:
            text += f"<{name(rng)}>\n{sentence(rng)}\n</{name(rng)}>\n"
        elif kind < 0.55:
            text += f"```\n{json.dumps({name(rng): sentence(rng)}, indent=2)}\n```\n"
        else:
            text += " ".join(sentence(rng) for _ in range(rng.randint(1, 4))) + "\n\n"
    return text


def filled(rng: random.Random, length: int) -> Dialog:
    """Return a dialog of the corpus behind some `length` characters that do not change its answer."""
    found = known_tools_dialog(rng) if rng.random() < 0.3 else dialog(rng)
    # Each kind as often as the others: most dialogs are counts and sums.
    if not found.messages or (not found.tools and rng.random() < 0.5):
        question, answer = rng.choice(KINDS)(rng)
        found = Dialog([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    kind = rng.random()
    if kind < 0.5 and found.messages[0]["role"] != "system":
        tools = list(found.tools or [])
        if not tools and rng.random() < 0.1:
            city = rng.choice(TEXTS["cities"])
            asked = rng.choice(TEXTS["tools"]["forms"]).format(rng.choice(["weather", "time"]), "@")
            user = {"role": "user", "content": vary(rng, asked).replace("@", city)}
            found = Dialog([user, {"role": "assistant", "content": FALLBACK["en"]}])
        while len(json.dumps(tools)) < length:
            tools.insert(rng.randint(0, len(tools)), unknown_tool(rng))
        return Dialog(found.messages, tools)
    if kind < 0.8:
        text = long_prompt(rng, length)
        messages = found.messages
        if messages[0]["role"] == "system":
            own, *messages = messages
            text = rng.choice([f"{text}{own['content']}", f"{own['content']}\n{text}"])
        return Dialog([{"role": "system", "content": text}, *messages], found.tools)
    turns: list[dict[str, Any]] = []
    while sum(len(message["content"]) for message in turns) < length * 0.7:
        question, answer = any_turn(rng)
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    at = 1 if found.messages[0]["role"] == "system" else 0
    return Dialog([*found.messages[:at], *turns, *found.messages[at:]], found.tools)
