"""Ollama's /api/chat and /api/generate: with the official client, and line by line.

tests/strict_ollama.py checks every answer that a test reads whole.
"""

import asyncio
import json
import sys
import time

import ollama
import pytest

from api.http.json_object import generated_object
from api.http.stream import StreamTiming
from api.ollama import answer as writing
from node.core.commands import KeepModel
from node.core.errors import ModelNotFound, NotReady, RingLost
from tests.api.families import FAMILIES, make
from tests.api.test_tools import CITY, WEATHER, call

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]
TEXT = "Hello there!"
ROME = call("weather", '{"city": "Rome"}')


def lines(response):
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.body.splitlines()]


def prompt_of(server, number=-1):
    tokenizer = server.backend.model.tokenizer
    return b"".join(map(tokenizer.token_bytes, server.backend.requests[number].prompt)).decode()


# --- the official client ---


async def test_the_client_chats_plain_and_streamed(server, ollama_client):
    plain = await ollama_client.chat(MODEL, USER)
    assert (plain.message.role, plain.message.content) == ("assistant", TEXT)
    assert (plain.model, plain.done, plain.done_reason) == (MODEL, True, "stop")
    parts = [part async for part in await ollama_client.chat(MODEL, USER, stream=True)]
    assert "".join(part.message.content for part in parts) == TEXT
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].message.content == ""
    prompt = len(server.backend.requests[0].prompt)
    made = len(server.backend.model.tokenizer.encode(TEXT)) + 1
    for last in (plain, parts[-1]):
        assert (last.prompt_eval_count, last.eval_count, last.done_reason) == (prompt, made, "stop")
        assert 0 < last.load_duration + last.prompt_eval_duration + last.eval_duration <= last.total_duration


async def test_the_client_generates_plain_and_streamed(server, ollama_client):
    plain = await ollama_client.generate(MODEL, "Hello", system="Be kind.")
    parts = [part async for part in await ollama_client.generate(MODEL, "Hello", system="Be kind.", stream=True)]
    assert plain.response == "".join(part.response for part in parts) == TEXT
    assert parts[-1].eval_count == plain.eval_count
    assert prompt_of(server).endswith("<|system|>Be kind.<|end|><|user|>Hello<|end|><|assistant|>")


async def test_the_synchronous_client(server):
    def ask():
        with ollama.Client(host=server.url) as client:
            streamed = "".join(part["message"]["content"] for part in client.chat(MODEL, USER, stream=True))
            return client.chat(MODEL, USER)["message"]["content"], streamed

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)


async def test_the_client_gets_a_model_by_the_tag_that_it_appends(server, ollama_client):
    assert (await ollama_client.chat(f"{MODEL}:latest", USER)).model == f"{MODEL}:latest"


async def test_the_client_raises_errors(server, ollama_client):
    with pytest.raises(ollama.ResponseError, match="does not exist") as raised:
        await ollama_client.chat("nobody/nothing", USER)
    assert raised.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"'options.temperature'") as raised:
        await ollama_client.chat(MODEL, USER, options={"temperature": -1})
    assert raised.value.status_code == 400
    server.backend.failure = (2, RingLost("mini-2 went away."))
    with pytest.raises(ollama.ResponseError, match=r"mini-2 went away\."):
        async for _ in await ollama_client.generate(MODEL, "Hello", stream=True):
            pass


# --- streams ---


async def test_a_stream_is_lines_of_json(server):
    server.backend.say("two\nlines\u2028and 日本 😀")
    response = await server.post("/api/chat", {"model": MODEL, "messages": USER})  # Ollama streams by default
    assert response.body.isascii()
    assert response.headers["Cache-Control"] == "no-cache"
    *parts, last = lines(response)
    assert "".join(part["message"]["content"] for part in parts) == "two\nlines\u2028and 日本 😀"
    assert all(set(part) == {"model", "created_at", "message", "done"} for part in parts)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert last["done_reason"] == "stop"


async def test_an_error_within_a_stream_is_its_last_line(server):
    server.backend.failure = (2, RingLost("mini-2 went away."))
    *parts, last = lines(await server.ask_ollama(stream=True))
    assert parts
    assert last == {"error": "mini-2 went away."}
    plain = await server.ask_ollama()
    assert (plain.status, plain.json) == (503, {"error": "mini-2 went away."})
    assert plain.headers["Retry-After"] == "2"


@pytest.mark.parametrize(("path", "said"), [("/api/chat", "message"), ("/api/generate", "response")])
async def test_lines_without_text_keep_a_long_prefill_alive(serve, backend, path, said):
    server = await serve(StreamTiming(keepalive_s=0.01))
    backend.pause_at = 0
    body = {"model": MODEL, "messages": USER, "prompt": "Hello"}
    async with server.http.post(f"{server.url}{path}", json=body) as response:
        quiet = json.loads(await response.content.readline())
        backend.go_on.set()
        await response.read()
    assert quiet["done"] is False
    assert quiet[said] == ({"role": "assistant", "content": ""} if said == "message" else "")


async def test_who_hangs_up_frees_the_session(server):
    server.backend.pause_at = 1
    async with server.http.post(f"{server.url}/api/chat", json={"model": MODEL, "messages": USER}) as response:
        await response.content.readline()
        await server.backend.paused.wait()
    async with asyncio.timeout(60):
        await server.backend.idle.wait()


async def test_the_time_of_the_prompt_ends_with_the_first_token(server):
    server.backend.pause_at = 0
    asking = asyncio.create_task(server.ask_ollama())
    await server.backend.paused.wait()
    begun = time.monotonic_ns()
    await asyncio.sleep(0)
    waited = time.monotonic_ns() - begun
    server.backend.go_on.set()
    answer = (await asking).json
    assert answer["prompt_eval_duration"] >= waited


# --- options ---


async def test_options_reach_the_sampling(server):
    options = {
        "temperature": 0.5,
        "top_k": 7.0,
        "top_p": 0.8,
        "min_p": 0.1,
        "typical_p": 1,
        "seed": 3,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "num_predict": 3,
        "stop": ["x"],
    }
    ignored = {"num_ctx": 4096.0, "mirostat": 1, "num_gpu": "all", "made_up": [], "num_thread": None}
    for path, given in (
        ("/api/chat", {}),
        ("/api/generate", {"prompt": "a"}),
        ("/api/generate", {"prompt": "a", "raw": True}),
    ):
        answer = (await server.ask_ollama(path, options=options | ignored, **given)).json
        assert (answer["done_reason"], answer["eval_count"]) == ("length", 3)
        made = server.backend.requests[-1].sampling
        assert (made.temperature, made.top_k, made.top_p, made.min_p, made.seed) == (0.5, 7, 0.8, 0.1, 3)
        penalties = (made.repetition_penalty, made.presence_penalty, made.frequency_penalty)
        assert penalties == (1.2, 0.3, 0.4)


async def test_without_options_they_are_ollamas(server):
    for options in (None, {}, {"temperature": None, "num_predict": -1, "seed": -1}, {"num_predict": -2}):
        await server.ask_ollama(options=options)
    for request in server.backend.requests:
        made = request.sampling
        assert (made.temperature, made.top_k, made.top_p, made.repetition_penalty) == (0.8, 40, 0.9, 1.0)
        assert request.max_tokens == server.backend.model.context - len(request.prompt)
    assert len({request.sampling.seed for request in server.backend.requests}) == len(server.backend.requests)


async def test_a_penalty_over_no_tokens_is_none(server):
    await server.ask_ollama(options={"repeat_penalty": 1.5, "repeat_last_n": 0})
    assert server.backend.requests[-1].sampling.repetition_penalty == 1.0


async def test_stop_strings(server):
    many = [f"no such text {number}" for number in range(15)]
    for path, given in (("/api/chat", {}), ("/api/generate", {"prompt": "a", "raw": True})):
        answer = (await server.ask_ollama(path, options={"stop": [*many, "there"]}, **given)).json
        assert (answer.get("response") or answer["message"]["content"], answer["done_reason"]) == ("Hello ", "stop")
    assert (await server.ask_ollama(options={"stop": "there"})).json["message"]["content"] == "Hello "


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/chat", {"model": None}, "Missing required parameter: 'model'."),
        ("/api/chat", {"model": 5}, "'model'"),
        ("/api/chat", {"messages": [{"content": "a"}]}, "'messages[0].role'"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "a"}]}, "'messages[0].role'"),
        ("/api/chat", {"messages": [{"role": "user", "content": ["a"]}]}, "'messages[0].content'"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["eA=e"]}]}, "'messages[0].images'"),
        ("/api/chat", {"messages": [{"role": "user", "images": ["eA=="]}]}, "pippin/demo takes no pictures, only text"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}] * 4097}, "'messages'"),
        ("/api/chat", {"options": {"temperature": "hot"}}, "'options.temperature'"),
        ("/api/chat", {"options": {"num_predict": 1.5}}, "'options.num_predict'"),
        ("/api/chat", {"options": {"num_predict": 10**12}}, "'options.num_predict'"),
        ("/api/chat", {"options": {"repeat_penalty": 0}}, "'options.repeat_penalty'"),
        ("/api/chat", {"options": {"stop": ["x"] * 17}}, "'options.stop'"),
        ("/api/chat", {"options": {"typical_p": 0.5}}, "'options.typical_p' is not supported."),
        ("/api/chat", {"options": []}, "'options'"),
        ("/api/chat", {"format": "xml"}, "'format'"),
        ("/api/chat", {"format": {"type": "poem"}}, "'format'"),
        ("/api/chat", {"think": "a lot"}, "'think'"),
        ("/api/chat", {"keep_alive": "soon"}, "'keep_alive'"),
        ("/api/chat", {"keep_alive": True}, "'keep_alive'"),
        ("/api/chat", {"logprobs": True, "top_logprobs": 21}, "'top_logprobs'"),
        ("/api/chat", {"stream": "no"}, "'stream'"),
        ("/api/chat", {"tools": [{"type": "function", "function": {}}]}, "'tools[0].function.name'"),
        ("/api/generate", {"prompt": ["a"]}, "'prompt'"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "'suffix' is not supported by pippin/demo: its tokenizer"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "'template' is not supported."),
        ("/api/generate", {"prompt": "a", "images": ["eA=e"]}, "'images'"),
        ("/api/generate", {"prompt": "a", "images": ["eA=="]}, "pippin/demo takes no pictures, only text"),
        (
            "/api/generate",
            {"prompt": "a", "images": ["eA=="], "raw": True},
            "'images' is not supported together with 'raw'",
        ),
        ("/api/generate", {"suffix": "a", "images": ["eA=="]}, "'images' is not supported together with 'suffix'"),
        ("/api/generate", {"prompt": "a", "raw": True, "options": {"top_p": 2}}, "'options.top_p'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_is_named(server, path, body, said, stream):
    response = await server.ask_ollama(path, **{"stream": stream, **body})
    assert response.status == 400
    assert said in response.json["error"]
    assert server.backend.requests == []


async def test_a_prompt_beyond_the_context_is_named_as_it_was_sent(server):
    for path, param in (("/api/chat", {}), ("/api/generate", {"prompt": "a " * 3000})):
        response = await server.ask_ollama(
            path, truncate=False, **param, **({} if param else {"messages": [{"role": "user", "content": "a " * 3000}]})
        )
        assert response.status == 400
        assert "maximum context length is 2048 tokens" in response.json["error"]


# --- formats, tools, thoughts, log-probabilities ---


@pytest.mark.parametrize("form", ["json", CITY])
@pytest.mark.parametrize(
    ("path", "given"),
    [("/api/chat", {}), ("/api/generate", {"prompt": "a"}), ("/api/generate", {"prompt": "a", "raw": True})],
)
async def test_a_format_constrains_the_answer(thinking, form, path, given):
    server = thinking
    server.backend.say('{"city": "Rome"}')
    answer = (await server.ask_ollama(path, format=form, think=True, **given)).json
    assert json.loads(answer.get("response") or answer["message"]["content"]) == {"city": "Rome"}
    assert ("city" in server.backend.requests[-1].grammar) == (form != "json")
    assert server.backend.requests[-1].grammar


async def test_an_empty_format_is_none(server):
    assert (await server.ask_ollama(format="")).status == 200
    assert server.backend.requests[-1].grammar == ""


async def test_calls_have_arguments_as_objects(server):
    server.backend.say(f"Well: <tool_call>\n{ROME}\n</tool_call>")
    tools = [{"function": WEATHER["function"]}]  # `type` may be missing
    plain = (await server.ask_ollama(tools=tools)).json
    *parts, last = lines(await server.ask_ollama(tools=tools, stream=True))
    (streamed,) = [made for part in parts for made in part["message"].get("tool_calls", [])]
    (made,) = plain["message"]["tool_calls"]
    for each in (made, streamed):
        assert each.pop("id").startswith("call_")
        assert each == {"function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}}
    assert plain["message"]["content"].strip() == "Well:"
    assert plain["done_reason"] == last["done_reason"] == "stop"


async def test_the_client_takes_part_in_a_conversation_with_tools(server, ollama_client):
    def weather(city: str) -> str:
        """Weather of a city."""
        return city

    server.backend.say(f"<tool_call>\n{ROME}\n</tool_call>")
    first = await ollama_client.chat(MODEL, USER, tools=[weather])
    (made,) = first.message.tool_calls
    assert (made.function.name, made.function.arguments) == ("weather", {"city": "Rome"})
    server.backend.say("Sunny.")
    result = {"role": "tool", "tool_name": "weather", "content": "sun"}
    again = await ollama_client.chat(MODEL, [*USER, first.message, result], tools=[weather])
    assert again.message.content == "Sunny."
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in prompt_of(server)
    assert "<|tool|>sun<|end|>" in prompt_of(server)


@pytest.mark.parametrize("cut", [False, True])
async def test_calls_beside_a_format_come_whole_or_not_at_all(server, cut):
    """Under the grammar of both, the arguments come in pieces."""
    server.backend.say(ROME)
    limit = {"num_predict": len(server.backend.model.tokenizer.encode(ROME)) - 3} if cut else {}
    given = {"tools": [WEATHER], "format": CITY, "options": limit}
    plain = (await server.ask_ollama(**given)).json["message"]
    parts = [part["message"] for part in lines(await server.ask_ollama(stream=True, **given))]
    calls = [made["function"]["arguments"] for part in parts for made in part.get("tool_calls", [])]
    assert [made["function"]["arguments"] for made in plain.get("tool_calls", [])] == calls
    assert calls == ([] if cut else [{"city": "Rome"}])
    assert "".join(part["content"] for part in parts) == plain["content"]
    assert plain["content"] == ""


async def test_arguments_are_parsed_once_however_long_they_are(server, monkeypatch):
    parsed = []

    def parse(text):
        parsed.append(text)
        return generated_object(text)

    monkeypatch.setattr(writing, "generated_object", parse)
    server.backend.model.context = 2**16
    server.backend.say(f'{{"name": "weather", "arguments": {{"city": [{", ".join(["{}"] * 5000)}]}}}}')
    made = (await server.ask_ollama(tools=[WEATHER], format=CITY)).json["message"]["tool_calls"]
    assert [each["function"]["arguments"] for each in made] == [{"city": [{}] * 5000}]
    assert len(parsed) == 1


async def test_arguments_that_few_parsers_take_do_no_harm(server):
    deep = f'{{"city": {"[" * 250}{"]" * 250}}}'
    for written, read in (
        ('{"city": "x\\ud800"}', {"city": "x\ufffd"}),
        ('{"city": 1e999}', {"city": sys.float_info.max}),
        (deep, None),
    ):
        server.backend.say(f'{{"name": "weather", "arguments": {written}}}\n{ROME}')
        message = (await server.ask_ollama(tools=[WEATHER], format=CITY)).json["message"]
        calls = [each["function"]["arguments"] for each in message["tool_calls"]]
        assert calls == [*([read] if read else []), {"city": "Rome"}]
        assert message["content"] == ("" if read else f'{{"name": "weather", "arguments": {deep}}}')


async def test_results_belong_to_the_calls_of_their_tools(server):
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("weather", "now", "weather")]
    results = [{"role": "tool", "tool_name": name, "content": "x"} for name in ("now", "weather", "weather")]
    template = "{% for m in messages %}{{ m.tool_calls | map(attribute='id') | join(',') if m.tool_calls }} {{ m.tool_call_id }}{% endfor %}"
    server.backend.model.tokenizer._hf.chat_template, before = (
        template,
        server.backend.model.tokenizer._hf.chat_template,
    )
    try:
        await server.ask_ollama(messages=[*USER, {"role": "assistant", "tool_calls": calls}, *results])
    finally:
        server.backend.model.tokenizer._hf.chat_template = before
    assert prompt_of(server).split() == ["call_1_0,call_1_1,call_1_2", "call_1_1", "call_1_0", "call_1_2"]


@pytest.fixture
def thinking(server, tmp_path):
    server.backend.model.tokenizer = make(FAMILIES["qwen"], tmp_path)
    server.backend.say("<think>\nA city 日本\n</think>\n\nRome")
    return server


@pytest.mark.parametrize(("path", "given"), [("/api/chat", {}), ("/api/generate", {"prompt": "a"})])
async def test_thoughts_are_apart_from_the_text(thinking, path, given):
    plain = (await thinking.ask_ollama(path, think=True, **given)).json
    parts = lines(await thinking.ask_ollama(path, think=True, stream=True, **given))
    said = [part.get("message", part) for part in (plain, *parts)]
    assert said[0]["thinking"] == "".join(part.get("thinking", "") for part in said[1:]) == "A city 日本"
    texts = [part.get("content", part.get("response")) for part in said]
    assert texts[0] == "".join(texts[1:]) == "Rome"


@pytest.mark.parametrize("think", [True, "high"])
async def test_a_model_without_thoughts_says_so(server, ollama_client, think):
    """In the words that Ollama's clients look for."""
    for ask in (ollama_client.chat(MODEL, USER, think=think), ollama_client.generate(MODEL, "Hello", think=think)):
        with pytest.raises(ollama.ResponseError) as raised:
            await ask
        assert (raised.value.status_code, raised.value.error) == (400, f'"{MODEL}" does not support thinking')
    assert server.backend.requests == []
    assert (await ollama_client.chat(MODEL, USER, think=False)).message.content == TEXT


async def test_whether_and_how_much_to_think_reaches_the_template(thinking):
    template = (
        "{{ enable_thinking }} {{ reasoning_effort }} {{ messages[-1].content }}{{ messages[0].reasoning_content }}"
    )
    thinking.backend.model.tokenizer._hf.chat_template = template
    thought = [{"role": "assistant", "content": "a", "thinking": "hm"}, *USER]
    for think, rendered in (
        (None, "  Hellohm"), (True, "True  Hellohm"), (False, "False  Hellohm"), ("low", "True low Hellohm")
    ):  # fmt: skip
        await thinking.ask_ollama(messages=thought, think=think)
        assert prompt_of(thinking).removeprefix("<s>") == rendered


@pytest.mark.parametrize(
    ("path", "given"),
    [("/api/chat", {}), ("/api/generate", {"prompt": "a"}), ("/api/generate", {"prompt": "a", "raw": True})],
)
@pytest.mark.parametrize("top", [0, 2, 20])
async def test_log_probabilities(server, path, given, top):
    asked = {"logprobs": True, "top_logprobs": top, **given}
    plain = (await server.ask_ollama(path, **asked)).json["logprobs"]
    streamed = [
        each for part in lines(await server.ask_ollama(path, stream=True, **asked)) for each in part.get("logprobs", [])
    ]
    assert plain == streamed
    assert "".join(each["token"] for each in plain) == TEXT
    assert all(each["logprob"] == -0.25 and len(each.get("top_logprobs", [])) == top for each in plain)
    assert bytes(byte for each in plain for byte in each["bytes"]) == TEXT.encode()


@pytest.mark.parametrize(("path", "given"), [("/api/chat", {}), ("/api/generate", {"prompt": "a"})])
async def test_the_bytes_of_a_token_are_those_of_its_text(server, path, given):
    """As Ollama's own tests `generate-logprobs` and `chat-logprobs` demand, also of alternatives and parts of characters."""
    server.backend.say("Hi 😀日本")
    asked = {"logprobs": True, "top_logprobs": 5, **given}
    for stream in (False, True):
        found = await server.ask_ollama(path, stream=stream, **asked)
        told = [each for part in (lines(found) if stream else [found.json]) for each in part.get("logprobs", [])]
        assert [each["token"] for each in told[:6]] == ["Hi", " ", *"\ufffd" * 4]
        for each in (entry for one in told for entry in (one, *one["top_logprobs"])):
            assert each["token"]
            assert bytes(each["bytes"]) == each["token"].encode()


async def test_alternatives_without_log_probabilities_are_ignored(server):
    assert "logprobs" not in (await server.ask_ollama(top_logprobs=3)).json


async def test_a_raw_prompt_has_no_template(server):
    await server.ask_ollama("/api/generate", prompt="<|user|>Once", raw=True)
    assert prompt_of(server).endswith("<|user|>Once")
    assert "<|assistant|>" not in prompt_of(server)


# --- loading and unloading ---


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_a_prompt_loads(server, path, stream):
    for keep_alive in (None, 300, "5m", "1h30m"):
        answer = (await server.post(path, {"model": MODEL, "stream": stream, "keep_alive": keep_alive})).json
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert server.backend.kept.get(MODEL) == {None: None, "1h30m": 5400}.get(keep_alive, 300)
        assert server.backend.loaded == {}
    for keep_alive in (-1, "-1m", "-1"):
        await server.post(path, {"model": MODEL, "messages": [], "prompt": "", "keep_alive": keep_alive})
        assert server.backend.loaded.pop(MODEL) == (0, 0)
    assert (await server.post(path, {"model": "nothing", "stream": stream})).status == 404


async def test_a_load_that_takes_long_is_kept_alive(serve, backend, monkeypatch):
    server, opened = await serve(StreamTiming(keepalive_s=0.01)), asyncio.Event()

    async def opening(_, client):
        await opened.wait()
        return backend.model

    monkeypatch.setattr(backend, "open", opening)
    async with server.http.post(f"{server.url}/api/generate", json={"model": MODEL}) as response:
        assert json.loads(await response.content.readline())["done"] is False
        opened.set()
        assert json.loads((await response.read()).splitlines()[-1])["done_reason"] == "load"


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", 0.0])
async def test_a_request_without_a_prompt_and_time_unloads(server, keep_alive):
    server.backend.loaded[MODEL] = (0, 0)
    for _ in range(2):  # the second time it is not loaded any more
        answer = (await server.post("/api/generate", {"model": f"{MODEL}:latest", "keep_alive": keep_alive})).json
        assert (answer["done"], answer["done_reason"], answer["response"]) == (True, "unload", "")
        assert server.backend.loaded == {}
    assert (await server.post("/api/chat", {"model": "nothing", "keep_alive": keep_alive})).status == 404


@pytest.mark.parametrize(("keep_alive", "kept"), [(0, 0), (-1, 1e9), ("5m", 300), ("-5m", 1e9), (1e30, 1e9)])
async def test_with_a_prompt_the_head_is_told_the_time(server, keep_alive, kept):
    server.backend.loaded[MODEL] = (0, 0)
    assert (await server.ask_ollama(keep_alive=keep_alive)).json["message"]["content"] == TEXT
    assert server.backend.kept == {MODEL: kept}
    await server.post("/api/embed", {"model": MODEL, "input": "x", "keep_alive": 7})
    assert server.backend.kept == {MODEL: 7}
    await server.post("/api/embeddings", {"model": MODEL, "prompt": "x", "keep_alive": 8})
    await server.ask_ollama()
    assert server.backend.kept == {MODEL: 8}
    assert server.backend.loaded == {MODEL: (0, 0)}, "that is what `cluster load` asked for"


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_time_is_told_after_the_answer(server, leaves, monkeypatch):
    """Told before it, the model could be unloaded before the head sees the request, and the time would be lost with it."""
    told = asyncio.Queue()
    monkeypatch.setattr(server.backend, "run", told.put)
    server.backend.pause_at = 2
    asked = asyncio.create_task(server.ask_ollama(keep_alive=0))
    await server.backend.paused.wait()
    assert told.empty()
    if leaves:
        asked.cancel()
    else:
        server.backend.go_on.set()
        assert (await asked).json["message"]["content"] == TEXT
    assert await told.get() == KeepModel(MODEL, 0)


async def test_a_time_that_can_not_be_told_fails_no_answer(server, monkeypatch):
    async def run(_):
        raise NotReady("There is no head.")

    monkeypatch.setattr(server.backend, "run", run)
    assert (await server.ask_ollama(keep_alive=5)).json["message"]["content"] == TEXT


async def test_a_page_may_not_say_how_long_a_model_stays(server):
    body = {"model": MODEL, "stream": False, "messages": [{"role": "user", "content": "Hello"}], "keep_alive": 0}
    answer = await server.post("/api/chat", body, headers={"Origin": "http://localhost:1234"})
    assert answer.json["message"]["content"] == TEXT
    assert server.backend.kept == {}


async def test_an_unknown_model_is_no_reason_to_wait(server, monkeypatch):
    async def missing(name, client):
        raise ModelNotFound(f"There is no model {name!r} here.", param="model")

    monkeypatch.setattr(server.backend, "open", missing)
    response = await server.ask_ollama(stream=True)
    assert (response.status, response.json) == (404, {"error": "There is no model 'pippin/demo' here."})


# --- the context of /api/generate ---


async def test_a_conversation_goes_on_by_its_context(server, ollama_client):
    """As older clients of Ollama send it: what the last answer ended with."""
    tokenizer = server.backend.model.tokenizer
    first = await ollama_client.generate(MODEL, "Hello", system="Be kind.")
    asked = server.backend.requests[0].prompt
    assert list(first.context) == [*asked, *tokenizer.encode(TEXT), *tokenizer.eos]
    *_, last = [part async for part in await ollama_client.generate(MODEL, "Again", context=first.context, stream=True)]
    second = server.backend.requests[1].prompt
    assert second[: len(first.context)] == tuple(first.context)
    assert prompt_of(server).endswith(f"<|assistant|>{TEXT}<|end|><|user|>Again<|end|><|assistant|>")
    assert second.count(tokenizer.bos) == 1
    assert tuple(last.context[: len(second)]) == second


async def test_of_a_context_that_is_too_long_the_beginning_is_left_out(server):
    context = [300, 301] * 1500
    found = await server.ask_ollama("/api/generate", prompt="Hello", context=context)
    assert found.status == 200
    whole = server.backend.requests[0].prompt
    (alone,) = [(await server.ask_ollama("/api/generate", prompt="Hello")).json["prompt_eval_count"]]
    bos = server.backend.model.tokenizer.bos
    assert whole[0] == bos
    kept = whole[1 : len(whole) - alone + 1]
    assert list(kept) == context[-len(kept) :]
    assert len(whole) == 2048 - 2048 // 8
    refused = await server.ask_ollama("/api/generate", prompt="Hello", context=context, truncate=False)
    assert refused.status == 400
    assert "maximum context length is 2048 tokens" in refused.json["error"]


@pytest.mark.parametrize("context", [["a"], "a", [10**8], [-1]])
async def test_a_context_of_something_else_is_refused(server, context):
    found = await server.ask_ollama("/api/generate", prompt="Hello", context=context)
    assert (found.status, "'context'" in found.json["error"]) == (400, True)
    assert server.backend.requests == []


@pytest.mark.parametrize("given", [{"context": [300]}, {"system": "Be kind."}])
async def test_a_raw_prompt_has_nothing_before_it(server, given):
    found = await server.ask_ollama("/api/generate", prompt="Hello", raw=True, **given)
    assert (found.status, found.json) == (400, {"error": "raw mode does not support template, system, or context"})
    assert "context" not in (await server.ask_ollama("/api/generate", prompt="Hello", raw=True)).json
