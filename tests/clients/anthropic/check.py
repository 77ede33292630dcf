"""Anthropic's official package for Python."""

import asyncio
import json

import anthropic
from harness import ASK, HELLO, KNOWN, MODEL, URL, WEATHER, is_weather, refused, run

client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key="any", max_retries=0)
TOOL = {"name": "weather", "description": "Forecast.", "input_schema": WEATHER}
GREEDY = {"model": MODEL, "messages": ASK, "max_tokens": 200, "extra_body": {"temperature": 0}}


def models() -> None:
    assert MODEL in [model.id for model in client.models.list(limit=1)]
    assert client.models.retrieve(MODEL).id == MODEL


def plain_and_streamed() -> None:
    answer = client.messages.create(**GREEDY)
    assert (answer.content[0].text, answer.stop_reason) == (HELLO, "end_turn")
    assert answer._request_id.startswith("req_")
    with client.messages.stream(**GREEDY) as stream:
        assert "".join(stream.text_stream) == HELLO
        final = stream.get_final_message()
    assert (final.content[0].text, final.usage.output_tokens) == (HELLO, answer.usage.output_tokens)
    kinds = [event.type for event in client.messages.create(**GREEDY, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    stopped = client.messages.create(**GREEDY, stop_sequences=[HELLO[2:4]])
    assert (stopped.content[0].text, stopped.stop_sequence) == (HELLO[:2], HELLO[2:4])


def at_once() -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=URL.removesuffix("/v1"), api_key="any") as several:
            asked = [
                several.messages.create(**{**GREEDY, "messages": [{"role": "user", "content": content}]})
                for content in list(KNOWN["texts"]) * 4
            ]
            return [answer.content[0].text for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == list(KNOWN["texts"].values()) * 4


def the_cache() -> None:
    words = " ".join(str(number) for number in range(200))
    asked = {**GREEDY, "max_tokens": 1, "system": [{"type": "text", "text": words}]}
    first, second = (client.messages.create(**asked).usage for _ in range(2))
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, system=asked["system"]).input_tokens
    for usage in (first, second):
        assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert second.cache_read_input_tokens > counted // 2


def refusals() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    for kind, wrong in (
        (anthropic.NotFoundError, {"model": "nothing"}),
        (anthropic.BadRequestError, {"max_tokens": -1}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "word " * 40_000}]}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [image]}]}),
    ):
        for stream in (False, True):
            asked = {**GREEDY, "stream": stream, **wrong}
            error = refused(kind, lambda asked=asked: client.messages.create(**asked))
            assert error.body["error"]["message"]


def tools() -> None:
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        asked = {**GREEDY, "tools": [TOOL], "tool_choice": choice}
        answer = client.messages.create(**asked)
        (use,) = answer.content
        assert (answer.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "weather")
        assert is_weather(use.input)
        with client.messages.stream(**asked) as stream:
            (streamed,) = stream.get_final_message().content
        assert streamed.input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny."}]}
    messages = [*ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    asked = {**GREEDY, "messages": messages, "max_tokens": 10, "tools": [TOOL], "tool_choice": {"type": "none"}}
    assert client.messages.create(**asked).content[0].text


def structured_output() -> None:
    given = {"type": "json_schema", "schema": WEATHER}
    answer = client.messages.create(**GREEDY, output_config={"format": given})
    assert is_weather(json.loads(answer.content[0].text))


if __name__ == "__main__":
    run(models, plain_and_streamed, at_once, the_cache, refusals, tools, structured_output)
