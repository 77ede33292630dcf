"""Chat completions: with the official client, and every field of every object."""

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.api.conftest import bytes_of
from tests.strict import strictly

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]


async def test_a_plain_answer_is_what_openai_would_send(server):
    server.backend.cached = 3
    response = await server.chat()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("application/json")
    answer = strictly(ChatCompletion, response.json)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.system_fingerprint
    (choice,) = response.json["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello there!", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    prompt = len(server.backend.requests[0].prompt)
    made = len(server.backend.model.tokenizer.encode("Hello there!")) + 1
    assert response.json["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_a_stream_is_what_openai_would_send(server):
    response = await server.chat(stream=True)
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    chunks = response.events
    for chunk in chunks:
        strictly(ChatCompletionChunk, chunk)
        assert "usage" not in chunk
        assert len(chunk["choices"]) == 1
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello there!"


async def test_each_event_is_one_line_of_bytes(server):
    server.backend.say("two\nlines\u2028and 日本 😀")
    response = await server.chat(stream=True)
    assert response.body.isascii()
    for event in response.body.split(b"\n\n")[:-1]:
        assert event.startswith(b"data: ")
        assert len(event.decode().splitlines()) == 1
    assert response.body.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_usage_in_a_stream_comes_last_and_equals_the_plain_one(server):
    plain = await server.chat()
    chunks = (await server.chat(stream=True, stream_options={"include_usage": True})).events
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == plain.json["usage"]


async def test_the_official_client(server):
    async with server.client() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=USER)
        assert answer.choices[0].message.content == "Hello there!"
        text = ""
        async for chunk in await client.chat.completions.create(model=MODEL, messages=USER, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == "Hello there!"
        async with client.chat.completions.stream(model=MODEL, messages=USER) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello there!"
        assert [model.id async for model in client.models.list()] == [MODEL, "plain"]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("no/such")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=USER, temperature=9)
        assert caught.value.param == "temperature"


async def test_the_official_client_without_asyncio(server):
    def talk() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=USER)
            stream = client.chat.completions.create(model=MODEL, messages=USER, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return answer.choices[0].message.content or "", streamed

    assert await asyncio.to_thread(talk) == ("Hello there!", "Hello there!")


async def test_tokens_arrive_as_they_are_made(server):
    server.backend.pause_at = 2
    async with server.client() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=USER, stream=True)
        first = await anext(stream)
        second = await anext(stream)
        assert first.choices[0].delta.role == "assistant"
        assert second.choices[0].delta.content
        assert server.backend.running == 1
        server.backend.go_on.set()
        rest = [chunk async for chunk in stream]
        assert rest[-1].choices[0].finish_reason == "stop"


async def test_the_prompt_is_the_template_of_the_model(server):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12", "name": None},
        {"role": "user", "content": "  <|end|> \n"},
    ]
    response = await server.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert response.status == 200
    tokenizer = server.backend.model.tokenizer
    spelled = b"".join(map(tokenizer.token_bytes, server.backend.requests[0].prompt)).decode()
    assert spelled == (
        "<|bos|><|system|>Be brief.<|end|><|user|>Hello<|end|>"
        '<|assistant|><tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|end|>'
        "<|tool|>12<|end|><|user|>  <|end|> \n<|end|><|assistant|>"
    )
    ends = [token for token in server.backend.requests[0].prompt if token in tokenizer.eos]
    assert len(ends) == 5


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


async def test_a_last_message_of_the_assistant_is_continued(server):
    messages = [*USER, {"role": "assistant", "content": "Well, I"}]
    await server.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    tokenizer = server.backend.model.tokenizer
    assert tokenizer.decode(server.backend.requests[0].prompt).endswith("Well, I")
    assert server.backend.requests[0].prompt[-1] not in tokenizer.control


async def test_parameters_reach_the_backend(server):
    await server.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=5,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"11": -100},
        max_completion_tokens=3,
        max_tokens=4,
        ignore_eos=True,
    )
    request = server.backend.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (
        0.5,
        0.9,
        7,
        0.1,
        5,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.0, 1.1)
    assert sampling.logit_bias == {11: -100.0}
    assert sampling.logprobs is None
    assert request.max_tokens == 3
    assert request.stop_tokens == frozenset()


async def test_defaults_are_those_of_openai(server):
    await server.chat()
    await server.chat()
    first, second = server.backend.requests
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (1.0, 1.0, 0)
    assert first.sampling.seed != second.sampling.seed
    assert first.id != second.id
    assert first.stop_tokens == server.backend.model.tokenizer.eos
    assert first.max_tokens == server.backend.model.context - len(first.prompt)


async def test_null_means_not_given(server):
    names = (
        "temperature top_p n stop seed logprobs top_logprobs tools tool_choice response_format logit_bias max_tokens"
    )
    response = await server.chat(**dict.fromkeys([*names.split(), "stream", "stream_options", "user"]))
    assert response.status == 200
    assert server.backend.requests[0].sampling.temperature == 1.0


async def test_unknown_and_harmless_parameters_are_ignored(server):
    extras = {"user": "me", "store": True, "metadata": {}, "parallel_tool_calls": False, "made_up": [1], "tools": []}
    response = await server.chat(
        **extras, response_format={"type": "text"}, modalities=["text"], stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )  # fmt: skip
    assert response.status == 200


async def test_several_choices(server):
    tokenizer = server.backend.model.tokenizer
    texts = {0: "Zero", 1: "One 😀", 2: "Two"}
    server.backend.script = lambda request: [*tokenizer.encode(texts[request.sampling.seed - 7]), *tokenizer.eos]
    plain = await server.chat(n=3, seed=7)
    assert [choice["message"]["content"] for choice in plain.json["choices"]] == list(texts.values())
    assert [choice["index"] for choice in plain.json["choices"]] == [0, 1, 2]
    assert plain.json["usage"]["prompt_tokens"] == len(server.backend.requests[0].prompt)
    assert plain.json["usage"]["completion_tokens"] == sum(len(tokenizer.encode(text)) + 1 for text in texts.values())
    assert len({request.id for request in server.backend.requests}) == 3

    chunks = (await server.chat(n=3, seed=7, stream=True)).events
    joined = dict.fromkeys(texts, "")
    roles = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        joined[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
    assert joined == texts
    assert sorted(roles) == [0, 1, 2]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_each_choice_of_a_stream_has_its_own_logprobs(server, path):
    tokenizer = server.backend.model.tokenizer
    texts = {0: "Zero 0", 1: "One 😀 and more", 2: "Two"}
    server.backend.script = lambda request: [*tokenizer.encode(texts[request.sampling.seed - 7]), *tokenizer.eos]
    asked = {"model": MODEL, "n": 3, "seed": 7, "max_tokens": 50}
    chat = path.startswith("chat")
    asked |= {"messages": USER, "logprobs": True, "top_logprobs": 2} if chat else {"prompt": "Once", "logprobs": 2}
    plain = (await server.post(f"/v1/{path}", asked)).json["choices"]
    chunks = (await server.post(f"/v1/{path}", {**asked, "stream": True})).events
    for choice in plain:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        told = [part["logprobs"] for part in own if part["logprobs"]]
        names = ["content"] if chat else list(choice["logprobs"])
        assert {name: [each for part in told for each in part[name]] for name in names} == {
            name: choice["logprobs"][name] for name in names
        }
        tokens = [each["token"] for each in choice["logprobs"]["content"]] if chat else choice["logprobs"]["tokens"]
        assert b"".join(map(bytes_of, tokens)).decode() == texts[choice["index"]]


async def test_logprobs_join_to_the_content(server):
    server.backend.say("Hi 😀 END of it")
    plain = (await server.chat(logprobs=True, top_logprobs=2, stop="ND")).json
    strictly(ChatCompletion, plain)
    choice = plain["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == "Hi 😀 E"
    assert [bytes_of(entry["token"]) for entry in content] == [bytes(entry["bytes"]) for entry in content]
    assert [entry["token"] for entry in content[2:6]] == [rf"bytes:\x{byte:02x}" for byte in "😀".encode()]
    for entry in content:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "Hi 😀 E"

    chunks = (await server.chat(logprobs=True, top_logprobs=2, stop="ND", stream=True)).events
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content
    none_asked = (await server.chat(logprobs=True)).json["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in none_asked)


@pytest.mark.parametrize(
    ("stop", "expected", "finish"),
    [
        ("there", "Hello ", "stop"),
        (["zzz", "lo t"], "Hel", "stop"),
        ("Hello", "", "stop"),
        ("there!!", "Hello there!", "stop"),
        ([], "Hello there!", "stop"),
        ("", "Hello there!", "stop"),
        (None, "Hello there!", "stop"),
    ],
)
async def test_stop(server, stop, expected, finish):
    plain = (await server.chat(stop=stop)).json["choices"][0]
    assert (plain["message"]["content"], plain["finish_reason"]) == (expected, finish)
    chunks = (await server.chat(stop=stop, stream=True)).events
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == expected
    assert server.backend.running == 0


async def test_a_beginning_of_a_stop_is_flushed_at_the_limit(server):
    server.backend.say("Hello there, how are you?")
    unlimited = (await server.chat(stop="?!")).json["choices"][0]["message"]["content"]
    assert unlimited == "Hello there, how are you?"
    for limit in range(1, 6):
        plain = (await server.chat(stop=f"{unlimited}!", max_tokens=limit)).json
        free = (await server.chat(max_tokens=limit)).json
        assert plain["choices"] == free["choices"]
        assert plain["choices"][0]["finish_reason"] == "length"
        assert plain["usage"]["completion_tokens"] == limit
        assert unlimited.startswith(plain["choices"][0]["message"]["content"])


async def test_forced_control_tokens_are_never_shown(server):
    tokenizer = server.backend.model.tokenizer
    control = sorted(tokenizer.control)
    server.backend.script = lambda request: [
        *control,
        *tokenizer.encode("a"),
        *control,
        *tokenizer.encode("b"),
        *control,
    ]
    body = {"ignore_eos": True, "max_tokens": 2 * len(control) + 2}
    for logprobs in (False, True):
        answer = (await server.chat(**body, logprobs=logprobs)).json["choices"][0]
        assert (answer["message"]["content"], answer["finish_reason"]) == ("ab", "length")
        chunks = (await server.chat(**body, logprobs=logprobs, stream=True)).events
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab"
    assert (await server.complete("x", **body)).json["choices"][0]["text"] == "ab"


async def test_a_long_prompt_is_refused_before_computing(server):
    server.backend.model.context = 40
    response = await server.chat("word " * 100)
    assert response.status == 400
    assert response.error["code"] == "context_length_exceeded"
    assert response.error["param"] == "messages"
    assert "40" in response.error["message"]
    assert server.backend.requests == []
    streamed = await server.chat("word " * 100, stream=True)
    assert (streamed.status, streamed.error["code"]) == (400, "context_length_exceeded")


async def test_the_context_is_the_limit_of_an_answer(server):
    server.backend.script = lambda request: [300] * 100
    server.backend.model.context = 40
    response = (await server.chat(max_tokens=1000)).json
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["total_tokens"] == 40
