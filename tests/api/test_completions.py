"""Legacy completions: raw prompts, lists, echo, their own shape of log-probabilities."""

import pytest
from openai.types import Completion

MODEL = "pippin/demo"


async def test_a_plain_completion_is_what_openai_would_send(server):
    server.backend.say(" upon a time")
    response = await server.complete("Once", max_tokens=50)
    answer = Completion.model_validate(response.json)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert response.json["choices"] == [{"index": 0, "text": " upon a time", "logprobs": None, "finish_reason": "stop"}]
    assert list(server.backend.requests[0].prompt) == server.backend.model.tokenizer.encode("Once")


async def test_the_default_limit_is_16_tokens(server):
    server.backend.script = lambda request: [300] * 100
    answer = (await server.complete()).json
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_stream_is_what_openai_would_send(server):
    async with server.client() as client:
        stream = await client.completions.create(
            model=MODEL, prompt="Once", stream=True, max_tokens=50, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        plain = await client.completions.create(model=MODEL, prompt="Once", max_tokens=50)
    *texts, last = chunks
    assert "".join(chunk.choices[0].text for chunk in texts) == plain.choices[0].text == "Hello there!"
    assert [chunk.choices[0].finish_reason for chunk in texts][-1] == "stop"
    assert (last.choices, last.usage) == ([], plain.usage)
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1


@pytest.mark.parametrize(
    ("prompt", "count"), [("a", 1), (["a", "b"], 2), ([300, 301], 1), ([[300], [301, 302], [303]], 3), ([""], 1)]
)
async def test_prompts_come_in_four_forms(server, prompt, count):
    answer = (await server.complete(prompt, n=2, max_tokens=50)).json
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
    prompts = [request.prompt for request in sorted(server.backend.requests, key=lambda request: request.id)]
    assert prompts[::2] == prompts[1::2]
    assert answer["usage"]["prompt_tokens"] == sum(len(prompt) for prompt in prompts[::2])
    if isinstance(prompt, list) and isinstance(prompt[0], list):
        assert [list(each) for each in prompts[::2]] == prompt


async def test_control_strings_of_a_raw_prompt_are_control_tokens(server):
    await server.complete("<|user|>Hi<|end|>")
    prompt = server.backend.requests[0].prompt
    assert {prompt[0], prompt[-1]} <= server.backend.model.tokenizer.control


async def test_echo(server):
    plain = await server.complete(" Once", echo=True, max_tokens=50)
    assert plain.json["choices"][0]["text"] == " OnceHello there!"
    events = (await server.complete(" Once", echo=True, max_tokens=50, stream=True)).events
    assert "".join(event["choices"][0]["text"] for event in events) == " OnceHello there!"
    tokens = server.backend.model.tokenizer.encode(" Once 😀")
    assert (await server.complete(tokens, echo=True)).json["choices"][0]["text"].startswith(" Once 😀")


async def test_echo_alone_computes_nothing(server):
    answer = (await server.complete("Once", echo=True, max_tokens=0)).json
    assert answer["choices"][0]["text"] == "Once"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert server.backend.requests == []


async def test_logprobs_have_the_legacy_shape(server):
    server.backend.say("Hi 😀 there")
    plain = (await server.complete(logprobs=3, max_tokens=50)).json["choices"][0]
    logprobs = plain["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(values) for values in logprobs.values()}) == 1
    assert "".join(logprobs["tokens"]) == plain["text"]
    for token, offset, top in zip(logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"], strict=True):
        assert plain["text"][offset:].startswith(token)
        assert len(top) >= 3
        assert max(top, key=top.__getitem__) == token
    events = (await server.complete(logprobs=3, max_tokens=50, stream=True)).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert {name: [value for part in parts for value in part[name]] for name in logprobs} == logprobs


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["a", 7]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": {"a": "b"}}, "prompt"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": "yes"}, "echo"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
async def test_bad_values_are_refused_by_name(server, body, param):
    response = await server.complete(**{"prompt": "Once", **body})
    assert response.status == 400
    assert response.error["param"] == param
    assert server.backend.requests == []


async def test_a_prompt_over_the_context(server):
    server.backend.model.context = 10
    response = await server.complete([300] * 11)
    assert response.error["code"] == "context_length_exceeded"
    assert "10" in response.error["message"]
    assert "11" in response.error["message"]
    assert (await server.complete([300] * 10)).status == 400
    assert (await server.complete([300] * 10, echo=True, max_tokens=0)).status == 200
