"""Tokens of prompts and chats, and the text of tokens, as vLLM gives them; endpoints that are refused with a reason."""

import pytest

from tests.api.families import FAMILIES, make
from tests.api.test_chat import MODEL, USER
from tests.api.test_tools import TOOLS


async def tokenize(server, **body):
    return await server.post("/v1/tokenize", {"model": MODEL, **body})


async def detokenize(server, tokens):
    return await server.post("/v1/detokenize", {"model": MODEL, "tokens": tokens})


async def test_a_prompt_has_the_tokens_that_a_completion_computes(server):
    answer = (await tokenize(server, prompt="Once <|end|>日本")).json
    await server.complete("Once <|end|>日本")
    (request,) = server.backend.requests
    assert set(answer) == {"count", "max_model_len", "tokens", "token_strs"}
    assert answer["tokens"] == list(request.prompt)
    assert (answer["count"], answer["max_model_len"]) == (len(request.prompt), server.backend.model.context)
    assert answer["token_strs"] is None
    assert (await server.post("/tokenize", {"model": MODEL, "prompt": "Once <|end|>日本"})).json == answer


async def test_the_token_that_begins_a_text_can_be_left_out(server, monkeypatch):
    tokenizer = server.backend.model.tokenizer
    monkeypatch.setattr(tokenizer, "_adds_bos", True)
    whole = (await tokenize(server, prompt="Once")).json["tokens"]
    assert whole == [tokenizer.bos, *(await tokenize(server, prompt="Once", add_special_tokens=False)).json["tokens"]]


async def test_names_are_those_of_the_vocabulary(server):
    answer = (await tokenize(server, prompt="Once upon <|end|>", return_token_strs=True)).json
    vocabulary = server.backend.model.tokenizer._hf.get_vocab()
    assert [vocabulary[name] for name in answer["token_strs"]] == answer["tokens"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        TOOLS,
        {**TOOLS, "tool_choice": "none"},
        {**TOOLS, "tool_choice": "required"},
        {"reasoning_effort": "low", "stream": True},
    ],
)
async def test_a_chat_has_the_tokens_that_its_request_computes(server, more):
    answer = (await tokenize(server, messages=USER, **more)).json
    await server.post("/v1/chat/completions", {"model": MODEL, "messages": USER, **more})
    (request,) = server.backend.requests
    assert answer["tokens"] == list(request.prompt)


async def test_a_chat_without_the_beginning_of_an_answer(server):
    tokens = (await tokenize(server, messages=USER)).json["tokens"]
    bare = (await tokenize(server, messages=USER, add_generation_prompt=False)).json["tokens"]
    assert tokens[: len(bare)] == bare
    assert (await detokenize(server, tokens[len(bare) :])).json == {"prompt": "<|assistant|>"}
    begun = [*USER, {"role": "assistant", "content": "It"}]
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        assert (
            (await detokenize(server, (await tokenize(server, messages=begun, **more)).json["tokens"]))
            .json["prompt"]
            .endswith("<|assistant|>It")
        )


async def test_an_adapter_makes_the_prompt(server):
    adapter = {"templates": {"user": {"start": "Q: ", "end": "\n"}}}
    answer = (await tokenize(server, messages=USER, adapter=adapter)).json
    await server.post("/v1/chat/completions", {"model": MODEL, "messages": USER, "adapter": adapter})
    assert answer["tokens"] == list(server.backend.requests[0].prompt)


@pytest.mark.parametrize("text", ["", "Hello there", " Hello", "日本\n\tx", "<|bos|><|user|>Hi<|end|>"])
async def test_a_text_comes_back(server, text):
    tokens = (await tokenize(server, prompt=text, add_special_tokens=False)).json["tokens"]
    assert (await detokenize(server, tokens)).json == {"prompt": text}


@pytest.mark.parametrize("family", FAMILIES)
async def test_texts_are_those_of_transformers(server, tmp_path, family):
    tokenizer = server.backend.model.tokenizer = make(FAMILIES[family], tmp_path)
    tokens = (await tokenize(server, prompt="Hello <b> there", return_token_strs=True)).json["tokens"]
    for each in (tokens, tokens[1:], [*tokens, *tokenizer.eos]):
        assert (await detokenize(server, each)).json["prompt"] == tokenizer._hf.decode(each)


async def test_a_prompt_over_the_context_is_counted(server):
    server.backend.model.context = 10
    for body in ({"prompt": "word " * 5000}, {"messages": [{"role": "user", "content": "word " * 5000}]}):
        answer = (await tokenize(server, **body)).json
        assert answer["count"] == len(answer["tokens"]) > 4000
        assert answer["max_model_len"] == 10


async def test_no_prompt_is_longer_than_what_is_counted(server, monkeypatch):
    monkeypatch.setattr("api.admin.tokenize.MAX_COUNTED", 8)
    server.backend.model.context = 4
    most = 8 * server.backend.model.tokenizer.max_token_chars
    assert (await tokenize(server, prompt="a" * most)).status == 200
    response = await tokenize(server, prompt="a" * (most + 1))
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")


async def test_a_long_list_is_written_in_pieces(server, monkeypatch):
    whole = (await tokenize(server, prompt="Once upon a time", return_token_strs=True)).json
    monkeypatch.setattr("api.admin.tokenize.PIECE", 2)
    assert (await tokenize(server, prompt="Once upon a time", return_token_strs=True)).json == whole
    assert (await tokenize(server, prompt="", return_token_strs=True)).json["tokens"] == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": ["Hello"]}, "prompt"),
        ("tokenize", {"prompt": "Hello", "add_special_tokens": "yes"}, "add_special_tokens"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"messages": USER, "tools": [{}]}, "tools[0].type"),
        ("tokenize", {"messages": USER, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ("tokenize", {"model": None, "prompt": "Hello"}, "model"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": "Hello"}, "tokens"),
        ("detokenize", {"tokens": [7, True]}, "tokens"),
        ("detokenize", {"tokens": [7, -1]}, "tokens"),
        ("detokenize", {"tokens": [999_999]}, "tokens"),
    ],
)
async def test_bad_values_are_refused_by_name(server, path, body, param):
    response = await server.post(f"/v1/{path}", {"model": MODEL, **body})
    assert response.status == 400
    assert response.error["param"] == param


async def test_an_unknown_model(server):
    for path, body in (("tokenize", {"prompt": "Hello"}), ("detokenize", {"tokens": [7]})):
        response = await server.post(f"/{path}", {"model": "nothing", **body})
        assert (response.status, response.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_what_is_missing_is_said(server, path):
    response = await server.post(path, {"model": MODEL, "text_1": "x", "text_2": ["y"]})
    assert (response.status, response.error["code"]) == (404, "unsupported")
    assert response.error["message"].startswith(f"{path} is not supported: ")
