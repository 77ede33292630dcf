"""Embeddings, with the `openai` package and as raw JSON."""

import asyncio

import pytest
from openai.types import CreateEmbeddingResponse

from node.core.errors import ModelUnsupported, Overloaded

MODEL = "pippin/demo"


async def embed(server, text, **body):
    return await server.post("/v1/embeddings", {"model": MODEL, "input": text, **body})


async def test_openai_gets_vectors(server):
    """The package requests base64 and decodes it."""
    async with server.client() as client:
        packed = await client.embeddings.create(model=MODEL, input=["Hello there", "Hi"])
        plain = await client.embeddings.create(model=MODEL, input=["Hello there", "Hi"], encoding_format="float")
    assert packed.model_dump() == plain.model_dump()
    asked = [list(request.prompt) for request in server.backend.evaluated]
    lengths = [len(server.backend.model.tokenizer.encode(text)) for text in ("Hello there", "Hi")]
    assert [len(prompt) for prompt in asked] == lengths * 2
    assert [entry.embedding[0] for entry in plain.data] == lengths
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == sum(lengths)


async def test_the_response_is_what_openai_would_send(server):
    response = await embed(server, "Hello")
    CreateEmbeddingResponse.model_validate(response.json, strict=True)
    assert set(response.json) == {"object", "data", "model", "usage"}
    assert (response.json["object"], response.json["model"]) == ("list", MODEL)
    assert set(response.json["data"][0]) == {"object", "index", "embedding"}
    assert (await server.post("/embeddings", {"model": MODEL, "input": "Hello"})).json == response.json


@pytest.mark.parametrize(
    ("text", "prompts"), [([300, 301], [[300, 301]]), ([[300], [301, 302]], [[300], [301, 302]]), ([[7]], [[7]])]
)
async def test_token_ids(server, text, prompts):
    answer = (await embed(server, text)).json
    assert [list(request.prompt) for request in server.backend.evaluated] == prompts
    assert [entry["index"] for entry in answer["data"]] == list(range(len(prompts)))


async def test_many_inputs_come_back_in_their_order(server):
    answer = (await embed(server, [[7] * length for length in range(1, 101)])).json
    assert [entry["embedding"][0] for entry in answer["data"]] == list(range(1, 101))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 7]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [999_999]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 256}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"model": None}, "model"),
    ],
)
async def test_bad_values_are_refused_by_name(server, body, param):
    response = await server.post("/v1/embeddings", {"model": MODEL, "input": "Hello", **body})
    assert response.status == 400
    assert response.error["param"] == param
    assert server.backend.evaluated == []


async def test_what_is_not_given_and_what_is_unknown_change_nothing(server):
    answer = await embed(server, "Hello", dimensions=None, encoding_format=None, user="me", colour="red")
    assert answer.json == (await embed(server, "Hello")).json


async def test_refusals(server):
    server.backend.model.context = 10
    response = await embed(server, [[300], [300] * 11])
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
    assert "10" in response.error["message"]
    assert "11" in response.error["message"]
    assert server.backend.evaluated == []
    assert (await embed(server, [300] * 10)).status == 200
    unknown = await server.post("/v1/embeddings", {"model": "nothing", "input": "Hello"})
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    server.backend.refusal = ModelUnsupported("It gives no embeddings.")
    assert (await embed(server, "Hello")).error["code"] == "model_unsupported"
    server.backend.refusal = Overloaded("64 requests are waiting already.")
    busy = await embed(server, ["Hello"] * 40)
    assert (busy.status, busy.headers["Retry-After"]) == (429, "2")


async def test_wrong_methods_and_bodies(server):
    async with server.http.get(f"{server.url}/v1/embeddings") as response:
        assert response.status == 405
    assert (await server.post("/v1/embeddings", data=b"[]")).status == 400


async def test_a_client_that_hangs_up_ends_its_embeddings(server):
    server.backend.pause_at = 0
    asked = asyncio.create_task(embed(server, ["a"] * 40))
    await server.backend.paused.wait()
    asked.cancel()
    await asyncio.wait_for(server.backend.idle.wait(), 5)
    assert len(server.backend.evaluated) <= 16
