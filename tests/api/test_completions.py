"""Legacy completions: raw prompts, lists, echo, and the legacy format of log-probabilities."""

import asyncio

import pytest
from openai.types import Completion

from node.core.errors import Overloaded
from node.core.generation import TokenEvent
from tests.api.conftest import bytes_of

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


async def test_the_token_that_begins_a_text_can_be_left_out(server, monkeypatch):
    """As vLLM's clients do whose text begins with that token's string, or that score a text from its middle on."""
    tokenizer = server.backend.model.tokenizer
    monkeypatch.setattr(tokenizer, "_adds_bos", True)
    for given, expected in (({}, True), ({"add_special_tokens": True}, True), ({"add_special_tokens": False}, False)):
        answer = await server.complete("Once", echo=True, max_tokens=1, **given)
        assert (server.backend.requests[-1].prompt[0] == tokenizer.bos) == expected
        assert answer.json["choices"][0]["text"].startswith("Once")


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
    assert b"".join(map(bytes_of, logprobs["tokens"])).decode() == plain["text"]
    assert logprobs["tokens"][2:6] == [rf"bytes:\x{byte:02x}" for byte in "😀".encode()]
    assert logprobs["tokens"][-1] == ""  # the end token has no text
    for token, offset, top in zip(logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"], strict=True):
        assert token.startswith("bytes:") or plain["text"][offset:].startswith(token)
        assert len(top) >= 3
        assert max(top, key=top.__getitem__) == token
    events = (await server.complete(logprobs=3, max_tokens=50, stream=True)).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert {name: [value for part in parts for value in part[name]] for name in logprobs} == logprobs


async def test_echo_with_logprobs_scores_the_prompt(server):
    server.backend.say("Hi")
    prompt = "Once 😀 upon"
    plain = (await server.complete(prompt, echo=True, logprobs=2, max_tokens=50)).json["choices"][0]
    answer = Completion.model_construct(**plain)
    assert plain["text"] == prompt + "Hi"
    ids = server.backend.model.tokenizer.encode(prompt)
    logprobs = answer.logprobs
    count = len(ids) + len(server.backend.model.tokenizer.encode("Hi")) + 1  # and the end token
    assert {len(values) for values in logprobs.values()} == {count}
    assert b"".join(map(bytes_of, logprobs["tokens"])).decode() == plain["text"]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1 : len(ids)] == [-float(place) for place in range(1, len(ids))]
    assert all(len(top) == 3 for top in logprobs["top_logprobs"][1 : len(ids)])
    assert logprobs["token_logprobs"][len(ids) :] == [-0.25] * (count - len(ids))
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or plain["text"][offset:].startswith(token)
    (asked,) = server.backend.evaluated
    assert (list(asked.prompt), asked.top) == (ids, 2)
    events = (await server.complete(prompt, echo=True, logprobs=2, max_tokens=50, stream=True)).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert {name: [value for part in parts for value in part[name]] for name in logprobs} == logprobs
    assert "".join(event["choices"][0]["text"] for event in events) == plain["text"]


async def test_scoring_generates_nothing_when_nothing_is_wanted(server):
    """lm-eval's request: several prompts as tokens, and no answer."""
    prompts = [[300, 301, 302], [17, 200]]
    answer = (await server.complete(prompts, echo=True, logprobs=1, max_tokens=0, temperature=0, seed=1234)).json
    assert server.backend.requests == []
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [3, 2]
    assert [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]] == [[None, -1.0, -2.0], [None, -1.0]]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 5


async def test_the_choices_of_a_prompt_share_its_scores(server):
    answer = (await server.complete(["Once", "upon a"], echo=True, logprobs=0, n=3, max_tokens=50)).json
    assert len(answer["choices"]) == 6
    assert len(server.backend.evaluated) == 2
    assert all(choice["logprobs"]["token_logprobs"][0] is None for choice in answer["choices"])


async def test_control_tokens_of_a_scored_prompt(server):
    """In a text, control strings are shown; control tokens among token ids are not. All are scored."""
    typed = (await server.complete("<|user|>Hi", echo=True, logprobs=0, max_tokens=0)).json["choices"][0]
    assert typed["logprobs"]["tokens"][:1] == ["<|user|>"]
    assert "".join(typed["logprobs"]["tokens"]) == typed["text"] == "<|user|>Hi"
    tokens = server.backend.model.tokenizer.encode("<|user|>Hi")
    given = (await server.complete(tokens, echo=True, logprobs=0, max_tokens=0)).json["choices"][0]
    assert given["text"] == "Hi"
    assert len(given["logprobs"]["tokens"]) == len(tokens)


async def test_a_scoring_that_fails_is_a_plain_error(server):
    server.backend.refusal = Overloaded("64 requests are waiting already.")
    for stream in (False, True):
        response = await server.complete(echo=True, logprobs=1, stream=stream)
        assert response.status == 429
        assert response.error["code"] == "rate_limit_exceeded"


async def test_a_client_that_hangs_up_ends_its_scoring(server):
    server.backend.pause_at = 0
    asked = asyncio.create_task(server.complete(echo=True, logprobs=1, max_tokens=0))
    await server.backend.paused.wait()
    asked.cancel()
    await asyncio.wait_for(server.backend.idle.wait(), 5)
    assert len(server.backend.evaluated) == 1


async def test_best_of_gives_the_likeliest(server):
    tokenizer = server.backend.model.tokenizer
    words = [" one", " two", " three", " four"]
    likely = {" one": -2.0, " two": -0.5, " three": -9.0, " four": -1.0}

    async def generate(request):
        word = words[int(request.id.rpartition("-")[2]) % 4]
        tokens = tokenizer.encode(word)
        for position, token in enumerate(tokens):
            finish = "length" if position + 1 == len(tokens) else None
            yield TokenEvent(position, token, likely[word], [], finish)

    server.backend.generate = generate
    answer = (await server.complete(["a", "b"], best_of=4, n=2)).json
    assert [choice["text"] for choice in answer["choices"]] == [" two", " four"] * 2
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 2 * sum(len(tokenizer.encode(word)) for word in words)
    same = (await server.complete("a", best_of=1)).json
    assert [choice["text"] for choice in same["choices"]] == [" one"]


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
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": "yes"}, "echo"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"prediction": "Hello"}, "prediction"),
        ({"prediction": {"type": "poem", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content", "content": None}}, "prediction.content"),
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
