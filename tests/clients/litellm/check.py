"""LiteLLM, which many programs use to talk to any server."""

import asyncio
import json
import math
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would download prices

import litellm
from harness import ASK, HELLO, MODEL, TOOL, URL, is_weather, refused, run
from pydantic import BaseModel, Field

GIVEN = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "any"}


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def plain_and_streamed() -> None:
    answer = litellm.completion(**GIVEN, messages=ASK, temperature=0)
    assert answer.choices[0].message.content == HELLO
    chunks = litellm.completion(
        **GIVEN, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == HELLO


def without_waiting() -> None:
    async def ask() -> str:
        answer = await litellm.acompletion(**GIVEN, messages=ASK, temperature=0, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    assert asyncio.run(ask()) == HELLO


def completions() -> None:
    given = {**GIVEN, "model": f"text-completion-openai/{MODEL}"}
    answer = litellm.text_completion(**given, prompt="1, 2, 3,", max_tokens=8, temperature=0)
    assert answer.choices[0].text


def refusals() -> None:
    for kind, wrong in (
        (litellm.NotFoundError, {"model": "openai/nothing"}),
        (litellm.BadRequestError, {"temperature": 9}),
        (litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "word " * 40_000}]}),
    ):
        asked = {**GIVEN, "messages": ASK, "num_retries": 0, **wrong}
        refused(kind, lambda asked=asked: litellm.completion(**asked))


def tools() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    answer = litellm.completion(**GIVEN, messages=ASK, temperature=0, tools=[TOOL], tool_choice=named)
    (call,) = answer.choices[0].message.tool_calls
    assert is_weather(json.loads(call.function.arguments))


def structured_output() -> None:
    answer = litellm.completion(**GIVEN, messages=ASK, temperature=0, response_format=Person, max_tokens=300)
    Person.model_validate_json(answer.choices[0].message.content)


def responses() -> None:
    answer = litellm.responses(**GIVEN, input="Hello", temperature=0)
    assert answer.output_text == HELLO


def embeddings() -> None:
    answer = litellm.embedding(**GIVEN, input=["Hello", "Good evening"])
    assert abs(math.hypot(*answer.data[0]["embedding"]) - 1) < 1e-3


if __name__ == "__main__":
    run(
        *(plain_and_streamed, without_waiting, completions, refusals),
        *(tools, structured_output, responses, embeddings),
    )
