"""outlines: texts that follow a form, by its models for the servers of vLLM and SGLang, which name forms in ways of their own."""

import asyncio
import re
import warnings
from typing import Literal

import outlines
from harness import HELLO, MODEL, URL, run
from openai import AsyncOpenAI, OpenAI
from outlines.types import CFG, JsonSchema, Regex
from pydantic import BaseModel, Field

warnings.filterwarnings("ignore", message="SGLang grammar-based")
GIVEN = {"base_url": URL, "api_key": "any", "max_retries": 0}
MODELS = [make(OpenAI(**GIVEN), MODEL) for make in (outlines.from_vllm, outlines.from_sglang)]
LIMITS = {"max_tokens": 200, "temperature": 0}
SUM = CFG('?start: number ("+" number)~1..3\nnumber: /[1-9][0-9]?/')


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def texts() -> None:
    for model in MODELS:
        assert model("Hello", **LIMITS) == HELLO
        assert "".join(model.stream("Hello", **LIMITS)) == HELLO


def choices() -> None:
    for model in MODELS:
        assert model("Is Rome in Italy?", Literal["yes", "no"], **LIMITS) in ("yes", "no")


def expressions() -> None:
    for model in MODELS:
        assert re.fullmatch(r"[A-F]{2}-[0-9]{3}", model("Hello", Regex(r"[A-F]{2}-[0-9]{3}"), **LIMITS))
        assert re.fullmatch(r"[+-]?\d+", model("How old are you?", int, **LIMITS, seed=1, stop=["\n"]) or "0")


def schemas() -> None:
    for model in MODELS:
        assert Person.model_validate_json(model("Who are you?", Person, **LIMITS))
        assert model("Hello", JsonSchema({"const": {"a": 1}}), **LIMITS) == '{"a": 1}'


def grammars() -> None:
    for model in MODELS:
        assert re.fullmatch(r"[1-9][0-9]?(\+[1-9][0-9]?){1,3}", model("Add them.", SUM, **LIMITS))


def streams_without_waiting() -> None:
    async def both() -> list[str]:
        made = [make(AsyncOpenAI(**GIVEN), MODEL) for make in (outlines.from_vllm, outlines.from_sglang)]
        return ["".join([part async for part in each.stream("Hello", Regex("(ab){3}"), **LIMITS)]) for each in made]

    assert asyncio.run(both()) == ["ababab"] * 2


if __name__ == "__main__":
    run(texts, choices, expressions, schemas, grammars, streams_without_waiting)
