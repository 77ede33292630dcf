"""Requests as clients of llama.cpp, Ollama and vLLM send them to OpenAI's endpoints."""

import pytest

from tests.api.conftest import MODEL

CHAT = {"messages": [{"role": "user", "content": "a"}]}
OF_PATH = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}


async def ask(server, path="/v1/chat/completions", **given):
    return await server.post(path, {"model": MODEL, **OF_PATH[path], **given})


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
async def test_minus_one_is_no_limit(server, path, param):
    """As clients of llama.cpp and Ollama send it."""
    assert (await ask(server, path, **{param: -1})).status == 200
    made = server.backend.requests[-1]
    assert made.max_tokens == server.backend.model.context - len(made.prompt)
    found = await ask(server, path, **{param: -2})
    assert (found.status, found.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/v1/chat/completions", {"max_tokens": 4.0, "n": 1.0, "seed": 7.0, "top_k": 20.0, "stop_token_ids": [9.0]}),
        ("/v1/chat/completions", {"max_completion_tokens": 4.0, "logprobs": True, "top_logprobs": 2.0}),
        ("/v1/completions", {"max_tokens": 4.0, "logprobs": 2.0, "best_of": 1.0, "seed": 7.0}),
        ("/v1/responses", {"max_output_tokens": 4.0, "top_logprobs": 2.0, "max_tool_calls": 3.0}),
        ("/v1/messages", {"max_tokens": 4.0, "top_k": 20.0}),
    ],
)
async def test_a_whole_number_may_have_a_point(server, path, given):
    """As clients write what they computed."""
    found = await server.post(path, {"model": MODEL, **OF_PATH.get(path, CHAT), **given})
    assert found.status == 200, found.body
    assert server.backend.requests[-1].max_tokens == 4


async def test_the_list_of_models_tells_their_contexts(server):
    """As vLLM's does, which agents read to know when to shorten a conversation."""
    async with server.client() as client:
        known, unknown = [each async for each in client.models.list()]
        assert known.max_model_len == (await client.models.retrieve(MODEL)).max_model_len == 2048
    assert "max_model_len" not in unknown.model_dump()


async def test_the_list_of_models_tells_what_an_alias_stands_for(server):
    """As `vllm bench serve` asks, when it is told no model: the first one's name for requests, and its `root` for the tokenizer."""
    server.backend.aliases = ["gpt-4o"]
    async with server.http.get(f"{server.url}/v1/models") as response:
        told = {each["id"]: each["root"] for each in (await response.json())["data"]}
    assert told == {MODEL: MODEL, "plain": "plain", "gpt-4o": MODEL}


@pytest.mark.parametrize("value", [4.5, "4", True])
async def test_other_values_are_no_whole_numbers(server, value):
    found = await ask(server, max_tokens=value)
    assert (found.status, found.error["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(
    ("path", "given", "param"),
    [
        ("/v1/chat/completions", {"modalities": ["text", "smell"]}, "modalities[1]"),
        ("/v1/chat/completions", {"service_tier": "best"}, "service_tier"),
        ("/v1/completions", {"service_tier": "best"}, "service_tier"),
        ("/v1/chat/completions", {"verbosity": "talkative"}, "verbosity"),
        ("/v1/responses", {"service_tier": "best"}, "service_tier"),
        ("/v1/responses", {"include": ["reasoning.encrypted_content", "everything"]}, "include[1]"),
        ("/v1/responses", {"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ],
)
async def test_a_value_that_no_parameter_has_is_refused_by_name(server, path, given, param):
    found = await ask(server, path, **given)
    assert (found.status, found.error["param"]) == (400, param)
    assert f"Invalid '{param}': input should be '" in found.error["message"]
    assert server.backend.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_sixteen_stop_strings_are_taken(server, path):
    """As llama.cpp and vLLM do; agents send more than OpenAI's 4."""
    server.backend.say("Hello there!")
    stops = [*"abcdfgijkmnpqs", "zzz", " th"]
    found = await ask(server, path, stop=stops, max_tokens=50)
    assert found.status == 200
    assert "Hello" in found.body.decode()
    assert "there" not in found.body.decode()
    assert (await ask(server, path, stop=[*stops, "y"])).error["param"] == "stop"
