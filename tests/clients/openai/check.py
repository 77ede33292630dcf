"""The official package for Python, current."""

import asyncio
import json

import openai
from harness import ASK, HELLO, KNOWN, MODEL, TOOL, URL, is_weather, refused, run
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=URL, api_key="any", max_retries=0)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def plain_and_streamed() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
    assert answer.choices[0].message.content == HELLO
    chunks = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *told, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == HELLO
    assert last.usage.completion_tokens == answer.usage.completion_tokens
    with client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0, logprobs=True) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == HELLO
    assert b"".join(bytes(entry.bytes) for entry in final.choices[0].logprobs.content).decode() == HELLO


def at_once() -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=URL, api_key="any", max_retries=0) as several:
            asked = [
                several.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": content}],
                    temperature=0,
                    max_completion_tokens=200,
                )
                for content in list(KNOWN["texts"]) * 4
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == list(KNOWN["texts"].values()) * 4


def refusals() -> None:
    for kind, wrong in (
        (openai.NotFoundError, {"model": "nothing"}),
        (openai.BadRequestError, {"temperature": 9}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "word " * 40_000}]}),
    ):
        for stream in (False, True):
            asked = {"model": MODEL, "messages": ASK, "stream": stream, **wrong}
            error = refused(kind, lambda asked=asked: client.chat.completions.create(**asked))
            assert error.body["message"]


def completions() -> None:
    answer = client.completions.create(model=MODEL, prompt="1, 2, 3,", max_tokens=8, temperature=0, logprobs=2)
    chunks = client.completions.create(model=MODEL, prompt="1, 2, 3,", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert "".join(answer.choices[0].logprobs.tokens) == answer.choices[0].text


def scoring() -> None:
    for known in KNOWN["scores"]:
        answer = client.completions.create(model=MODEL, prompt=known["whole"], max_tokens=0, echo=True, logprobs=1)
        first, *told = answer.choices[0].logprobs.token_logprobs
        assert first is None
        assert all(abs(mine - theirs) < 1e-3 for mine, theirs in zip(told, known["logprobs"], strict=True))


def tools() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        asked = {"model": MODEL, "messages": ASK, "temperature": 0, "tools": [TOOL], "tool_choice": choice}
        (choice_made,) = client.chat.completions.create(**asked).choices
        (call,) = choice_made.message.tool_calls
        assert (choice_made.finish_reason, call.function.name) == ("tool_calls", "weather")
        assert is_weather(json.loads(call.function.arguments))
        with client.chat.completions.stream(**asked) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.arguments == call.function.arguments
    result = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude_none=True)]},
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=result, max_tokens=10, tools=[TOOL], tool_choice="none"
    )
    assert answer.choices[0].message.content


def structured_output() -> None:
    asked = {"model": MODEL, "messages": ASK, "response_format": Person, "max_tokens": 300}
    person = client.chat.completions.parse(**asked, temperature=0).choices[0].message.parsed
    assert isinstance(person, Person)
    with client.chat.completions.stream(**asked, temperature=1, seed=3) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, response_format={"type": "json_object"}, max_tokens=300, temperature=0
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def responses() -> None:
    answer = client.responses.create(model=MODEL, input="Hello", temperature=0)
    assert answer.output_text == HELLO
    with client.responses.stream(model=MODEL, input="Hello", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == HELLO
    again = client.responses.create(model=MODEL, input="And you?", previous_response_id=answer.id, temperature=0)
    assert again.usage.input_tokens > answer.usage.input_tokens
    assert client.responses.retrieve(answer.id).output_text == HELLO
    client.responses.delete(answer.id)


def embeddings() -> None:
    packed = client.embeddings.create(model=MODEL, input=["Hello", "Good evening"])
    plain = client.embeddings.create(model=MODEL, input=["Hello", "Good evening"], encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        assert abs(sum(value * value for value in one.embedding) - 1) < 1e-3
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6


if __name__ == "__main__":
    run(
        *(models, plain_and_streamed, at_once, refusals, completions),
        *(scoring, tools, structured_output, responses, embeddings),
    )
