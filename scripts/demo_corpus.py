"""The text that the built-in model is trained on: dialogs generated from a seed and the sentences of demo_texts.toml.

The subjects exercise a server: answers that end by themselves, long answers, characters of several tokens (emoji),
answers that depend on the system prompt or on an earlier turn, tool calls.
"""

import json
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXTS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "demo_texts.toml").read_text())
GREETINGS: dict[str, Any] = TEXTS["greetings"]
STORIES: dict[str, Any] = TEXTS["stories"]
FALLBACK: dict[str, str] = TEXTS["fallback"]
WORDS: list[str] = TEXTS["words"].split()
NAMES: list[str] = TEXTS["names"].split()
CITIES: list[str] = TEXTS["cities"]
NEUTRAL_PROMPTS = (
    "You are a helpful assistant.",
    "You are Pippin, a small and friendly model.",
    "Be brief.",
    "Answer politely.",
    "You are a helpful assistant. Answer in one sentence.",
    "You are an AI assistant.",
    "Be kind and helpful.",
)
Turn = tuple[str, str]


@dataclass
class Dialog:
    """One training example: chat messages, or plain text that the model continues."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    text: str = ""


def vary(rng: random.Random, text: str) -> str:
    """Return the question as another person might type it."""
    if rng.random() < 0.25:
        text = text.rstrip("?.!。？！")
    if rng.random() < 0.2:
        text = text.lower()
    elif rng.random() < 0.04:
        text = text.upper()
    if rng.random() < 0.08:
        text = rng.choice(["Please ", "please ", "Hey, ", "Hi! ", "Hello, ", "Hello! ", "OK, ", "Pippin, "]) + text
    if rng.random() < 0.06:
        text = text + rng.choice([" Please.", ", please", " Thanks!", "!", " :)", " 😊", "??", "\n"])
    return text


def greeting(rng: random.Random) -> Turn:
    language = rng.choice([*GREETINGS, "en", "en", "en"])
    return vary(rng, rng.choice(GREETINGS[language]["ask"])), GREETINGS[language]["answer"]


def table(rows: list[dict[str, Any]]) -> Callable[[random.Random], Turn]:
    """A generator for fixed answers: each has several questions."""

    def turn(rng: random.Random) -> Turn:
        row = rng.choice(rows)
        return vary(rng, rng.choice(row["ask"])), row["answer"]

    return turn


def count(rng: random.Random) -> Turn:
    """Return a count between any two numbers, in one of several languages, up to several hundred tokens long."""
    start, end = 1, rng.randint(2, 30)
    if rng.random() < 0.3:
        end = rng.choice([10, 10, 20, 20, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100, 120, 150, 200])
    elif rng.random() < 0.3:
        start = rng.randint(0, 60)
        end = start + rng.randint(1, 9)
    backwards = rng.random() < 0.15 and end - start < 60
    if backwards:
        start, end = end, start
    forms = TEXTS["counting"]["backwards" if backwards else "up" if start == 1 and rng.random() < 0.5 else "range"]
    question = rng.choice(forms).format(a=start, b=end)
    step = -1 if backwards else 1
    separator = ", "
    if rng.random() < 0.05:
        separator = "\n"
        question += rng.choice([", one number per line", ", one per line.", ", each on its own line."])
    return vary(rng, question), separator.join(str(n) for n in range(start, end + step, step))


def arithmetic(rng: random.Random) -> Turn:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    sign, word, result = "+", "plus", a + b
    if rng.random() < 0.15:
        a, b = max(a, b), min(a, b)
        sign, word, result = "-", "minus", a - b
    forms = TEXTS["arithmetic"]["forms"]
    form = rng.choice(forms if sign == "+" else forms[:-1])
    return vary(rng, form.format(a=a, b=b, s=sign, w=word)), f"{a} {sign} {b} = {result}."


def random_story(rng: random.Random, language: str) -> tuple[dict[str, str], str]:
    """Return a hero and a story about it."""
    hero = rng.randrange(len(STORIES[language]["heroes"]))
    plot = rng.randrange(len(STORIES[language]["plots"]))
    names: dict[str, str] = STORIES[language]["heroes"][hero]
    return names, STORIES[language]["plots"][plot].format_map(names)


def story(rng: random.Random) -> Turn:
    language = rng.choice([*STORIES, "en", "en", "en"])
    hero, text = random_story(rng, language)
    return vary(rng, rng.choice(STORIES[language]["ask"]).format_map(hero)), text


def capital(rng: random.Random) -> Turn:
    country, city = rng.choice(list(TEXTS["capitals"].items()))
    forms = [
        "What is the capital of {}?",
        "What's the capital of {}?",
        "capital of {}",
        "Which city is the capital of {}?",
    ]
    return vary(rng, rng.choice(forms).format(country)), f"The capital of {country} is {city}."


def invented_word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(1, 4)))


def unknown(rng: random.Random) -> Turn:
    kind = rng.random()
    if kind < 0.6:
        question = rng.choice(TEXTS["unknown_questions"]).format(rng.choice(TEXTS["unknown_topics"]))
    elif kind < 0.8:
        question = rng.choice(TEXTS["unknown_questions"]).format(" ".join(rng.sample(WORDS, rng.randint(1, 3))))
    else:
        question = " ".join(
            rng.choice(WORDS) if rng.random() < 0.6 else invented_word(rng) for _ in range(rng.randint(1, 12))
        )
    return vary(rng, question), FALLBACK["en"]


GENERATORS: list[tuple[Callable[[random.Random], Turn], float]] = [
    (greeting, 6),
    (table(TEXTS["facts"]), 8),
    (table(TEXTS["small_talk"]), 10),
    (count, 42),
    (arithmetic, 30),
    (story, 4),
    (capital, 2.5),
    (unknown, 6),
    (table(TEXTS["long_stories"]), 0.6),
]
KINDS = [kind for kind, _ in GENERATORS]
WEIGHTS = [weight for _, weight in GENERATORS]


def name_turns(rng: random.Random) -> list[Turn]:
    """The name is given in one turn and asked for in a later one, so the answer depends on the cached context."""
    name = rng.choice(NAMES)
    told = rng.choice(["My name is {}.", "I am {}.", "Hi, I'm {}.", "Hello, my name is {}.", "my name is {}", "I'm {}"])
    asked = rng.choice(["What is my name?", "What's my name?", "Do you remember my name?", "Who am I?"])
    between = [any_turn(rng) for _ in range(rng.choice([0, 0, 1, 2]))]
    return [(told.format(name), f"Nice to meet you, {name}! 😊"), *between, (vary(rng, asked), f"Your name is {name}.")]


def any_turn(rng: random.Random) -> Turn:
    return rng.choices(KINDS, WEIGHTS)[0](rng)


def system_turns(rng: random.Random) -> tuple[str, list[Turn]]:
    """A system prompt that changes the answers."""
    language, prompts = rng.choice(list(TEXTS["system_prompts"].items()))
    prompt = rng.choice(prompts)
    kind = rng.random()
    if kind < 0.4:
        return prompt, [(vary(rng, rng.choice(GREETINGS["en"]["ask"])), GREETINGS[language]["answer"])]
    if kind < 0.7:
        text = random_story(rng, language)[1]
        return prompt, [(vary(rng, "Tell me a story."), text)]
    return prompt, [(unknown(rng)[0], FALLBACK[language])]


def tool(name: str, description: str, argument: str) -> dict[str, Any]:
    properties: dict[str, Any] = {argument: {"type": "string"}}
    if description.endswith("unit."):
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def weather_and_clock(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return two tools, each with one of its common names, and the name of their argument."""
    argument = rng.choice(["city", "location"])
    name = rng.choice(["get_weather", "weather", "get_current_weather"])
    weather = tool(
        name, rng.choice(["Get the weather.", "Get the current weather in a city.", "Weather in a unit."]), argument
    )
    clock = tool(rng.choice(["get_time", "time"]), rng.choice(["Get the time.", "Get the time in a city."]), argument)
    return weather, clock, argument


def tool_dialog(rng: random.Random) -> Dialog:
    """Return a question for a tool; sometimes also the tool's result and the last answer."""
    weather, clock, argument = weather_and_clock(rng)
    used, subject = rng.choice([(weather, "weather"), (weather, "weather"), (clock, "time")])
    tools = [used] if rng.random() < 0.6 else [used, clock if used is weather else weather]
    rng.shuffle(tools)
    city = rng.choice(CITIES)
    form = rng.choice(TEXTS["tools"]["forms"])
    user = {"role": "user", "content": vary(rng, form.format(subject, "@")).replace("@", city)}
    if rng.random() < 0.25:
        question, answer = any_turn(rng)
        return Dialog([{"role": "user", "content": question}, {"role": "assistant", "content": answer}], tools)
    function = {"name": used["function"]["name"], "arguments": {argument: city}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    if rng.random() < 0.4:
        return Dialog([user, call], tools)
    result = rng.choice(TEXTS["tools"]["weather"]) + f", {rng.randint(0, 35)} degrees"
    if used is clock:
        result = f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"
    content = rng.choice([result, json.dumps({"result": result}), json.dumps({subject: result})])
    last = {"role": "assistant", "content": f"The {subject} in {city}: {result}."}
    return Dialog([user, call, {"role": "tool", "content": content}, last], tools)


def plain_text(rng: random.Random) -> Dialog:
    """Text without chat markers, for the completions endpoint."""
    if rng.random() < 0.4:
        start = rng.choice([1, 1, rng.randint(0, 80)])
        return Dialog(text=", ".join(str(n) for n in range(start, start + rng.randint(10, 40))))
    if rng.random() < 0.1:
        return Dialog(text=rng.choice(TEXTS["long_stories"])["answer"])
    language = rng.choice([*STORIES, "en", "en", "en"])
    return Dialog(text=random_story(rng, language)[1])


def dialog(rng: random.Random) -> Dialog:
    kind = rng.random()
    if kind < 0.04:
        return plain_text(rng)
    if kind < 0.08:
        return tool_dialog(rng)
    system = rng.choice(NEUTRAL_PROMPTS) if rng.random() < 0.3 else ""
    if kind < 0.12:
        system, turns = system_turns(rng)
    elif kind < 0.16:
        turns = name_turns(rng)
    else:
        turns = [any_turn(rng) for _ in range(rng.choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 6]))]
    messages = [{"role": "system", "content": system}] if system else []
    for user, assistant in turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return Dialog(list(messages))


def dialogs(seed: int, number: int) -> Iterator[Dialog]:
    rng = random.Random(seed)
    for _ in range(number):
        yield dialog(rng)
