"""Ollama's API of models: lists, descriptions, downloads, embeddings; its greeting and its port; who may change what."""

import json
import socket
from datetime import UTC, datetime, timedelta

import aiohttp
import ollama
import pytest

from api.http.server import ApiServer
from node.core.errors import ModelBusy, ModelNotFetched, ModelNotFound, PortTaken, RingLost

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]
PAGE = {"Origin": "http://localhost:3000"}


async def get(server, path, **headers):
    async with server.http.get(f"{server.url}{path}", headers=headers) as response:
        return response.status, await response.text()


# --- lists and descriptions ---


async def test_the_client_lists_models(server, ollama_client):
    models = (await ollama_client.list()).models
    assert [model.model for model in models] == [f"{MODEL}:latest", "plain:latest"]
    assert (models[0].size, models[0].modified_at.isoformat()) == (1000, "2023-11-14T22:13:20+00:00")
    assert len({model.digest for model in models}) == 2
    assert all(len(model.digest) == 64 for model in models)
    for model in models:
        assert (await ollama_client.show(model.model)).capabilities
    known, unknown = (model.details for model in models)
    assert (known.family, known.families) == ("llama", ["llama"])
    assert (known.parameter_size, known.quantization_level) == ("1.84M", "4-bit")
    assert (unknown.family, unknown.parameter_size, unknown.quantization_level) == ("", "", "")
    assert (await ollama_client.show(MODEL)).details == known


def placed_as(model, state="ready", running=0, **more):
    requests = {"running": running, "queued": 0}
    return {"id": model, "state": state, "context": 2048, "keep_s": None, "used_at": 0, "requests": requests, **more}


async def test_the_client_sees_when_a_model_expires(server, ollama_client):
    async def expiry(**placed):
        server.backend.placed = [placed_as(MODEL, **placed)]
        return (await ollama_client.ps()).models[0].expires_at

    assert (await expiry(keep_s=300.0, used_at=1_700_000_000)).timestamp() == 1_700_000_300
    now = datetime.now(UTC)
    assert now < await expiry(keep_s=300.0, used_at=1_700_000_000, running=1) < now + timedelta(seconds=600)
    assert (await expiry(keep_s=1e9, used_at=1_700_000_000)).year > 2200


async def test_the_client_lists_loaded_models(server, ollama_client):
    assert (await ollama_client.ps()).models == []
    placed = [(MODEL, "ready"), ("plain", "loading"), ("not allowed", "ready")]
    server.backend.placed = [placed_as(model, state) for model, state in placed]
    (model,) = (await ollama_client.ps()).models
    assert (model.model, model.size, model.size_vram, model.context_length) == (f"{MODEL}:latest", 1000, 1000, 2048)
    assert model.expires_at.year > 2200
    assert (model.details.family, model.details.parameter_size) == ("llama", "1.84M")


async def test_a_loaded_model_is_listed_by_its_aliases_too(server, ollama_client):
    """A program that was told of one looks for that name."""
    server.backend.aliases = ["gpt-4o"]
    server.backend.placed = [placed_as(MODEL, "ready")]
    own, alias = (await ollama_client.ps()).models
    assert (own.model, alias.model, alias.name) == (f"{MODEL}:latest", "gpt-4o:latest", "gpt-4o:latest")
    assert (alias.digest, alias.details, alias.context_length) == (own.digest, own.details, 2048)


async def test_the_client_shows_a_model(server, ollama_client):
    shown = await ollama_client.show(MODEL)
    assert shown.capabilities == ["completion", "tools", "thinking", "embedding"]
    assert shown.modelinfo == {
        "general.architecture": "llama",
        "general.basename": "demo",
        "general.parameter_count": 1836000,
        "llama.context_length": 2048,
        "llama.embedding_length": 128,
        "llama.block_count": 8,
    }
    assert (shown.details.family, shown.details.families) == ("llama", ["llama"])
    assert shown.details.quantization_level == "4-bit"
    assert shown.details.parameter_size == "1.84M"
    assert "num_ctx                        2048" in shown.parameters.splitlines()
    assert shown.template
    assert shown.license == "Do as you like."
    begin, *lines = shown.modelfile.splitlines()
    assert begin == f"FROM {MODEL}"
    assert {f'TEMPLATE """{shown.template}"""', "PARAMETER num_ctx 2048", 'LICENSE """Do as you like."""'} <= {*lines}
    plain = await ollama_client.show("plain")
    assert (plain.capabilities, plain.details.quantization_level) == (["completion"], "float32")
    assert (plain.license, "LICENSE" in plain.modelfile) == ("", False)


async def test_a_model_may_be_named_in_the_older_way(server):
    old = (await server.post("/api/show", {"name": f"{MODEL}:latest", "verbose": True})).json
    assert old == (await server.post("/api/show", {"model": MODEL})).json
    assert (await server.post("/api/show", {})).json == {"error": "Missing required parameter: 'model'."}
    assert (await server.post("/api/show", {"model": "nothing"})).status == 404


async def test_the_version_is_one_that_clients_accept(server):
    _, body = await get(server, "/api/version")
    assert tuple(map(int, json.loads(body)["version"].split("."))) > (0, 6, 4)


# --- embeddings ---


async def test_the_client_gets_embeddings(server, ollama_client):
    made = await ollama_client.embed(MODEL, ["Hello there", "Hi"])
    lengths = [len(server.backend.model.tokenizer.encode(text)) for text in ("Hello there", "Hi")]
    assert [embedding[0] for embedding in made.embeddings] == lengths
    assert (made.model, made.prompt_eval_count) == (MODEL, sum(lengths))
    assert 0 <= made.load_duration <= made.total_duration
    assert (await ollama_client.embed(MODEL, "Hi")).embeddings == [made.embeddings[1]]
    assert (await ollama_client.embeddings(MODEL, "Hi")).embedding == made.embeddings[1]


@pytest.mark.parametrize(("path", "param"), [("/api/embed", "input"), ("/api/embeddings", "prompt")])
async def test_nothing_to_embed_is_no_error(server, path, param):
    answer = (await server.post(path, {"model": MODEL, param: ""})).json
    assert answer.get("embeddings", answer.get("embedding")) == []


async def test_a_text_beyond_the_context_is_cut_unless_that_is_forbidden(server):
    long = "日本 😀 " * 3000
    assert (await server.post("/api/embed", {"model": MODEL, "input": [long, "Hi"]})).status == 200
    first = server.backend.evaluated[0].prompt
    assert list(first) == server.backend.model.tokenizer.encode(long)[:2048]
    refused = await server.post("/api/embed", {"model": MODEL, "input": long, "truncate": False})
    assert refused.status == 400
    assert "2048 tokens" in refused.json["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input": 5}, "'input'"),
        ({"input": [[1, 2]]}, "'input'"),
        ({"input": ["a"] * 2049}, "'input'"),
        ({"input": "a", "dimensions": 3}, "'dimensions' is not supported"),
        ({"input": "a", "truncate": "yes"}, "'truncate'"),
        ({"input": ["a", ""]}, ""),
    ],
)
async def test_what_is_wrong_with_texts_is_named(server, body, said):
    response = await server.post("/api/embed", {"model": MODEL, **body})
    assert (response.status, said in response.body.decode()) == (400 if said else 200, True)


# --- downloads ---


async def test_the_client_pulls(server, ollama_client):
    told = [part async for part in await ollama_client.pull("qwen3:0.6b", stream=True)]
    assert [part.status for part in told] == ["pulling manifest", *["pulling qwen3:0.6b"] * 2, "success"]
    assert [(part.completed, part.total) for part in told[1:3]] == [(1, 4), (4, 4)]
    assert len({part.digest for part in told[1:3]}) == 1
    assert (await ollama_client.pull("qwen3:0.6b")).status == "success"


async def test_a_download_that_fails_says_so(server):
    server.backend.refusal = ModelNotFound("There is no such model.", param="model")
    for stream in (True, False):
        response = await server.post("/api/pull", {"model": "x/y", "stream": stream})
        assert (response.status, response.json) == (404, {"error": "There is no such model."})
    server.backend.refusal, server.backend.failure = None, (0, RingLost("Too late."))
    response = await server.post("/api/pull", {"model": "x/y"})
    assert json.loads(response.body.splitlines()[-1]) == {"error": "Too late."}
    assert (await server.post("/api/pull", {"model": "x/y", "stream": False})).status == 503


async def test_the_client_deletes(server, ollama_client):
    assert (await ollama_client.delete("x/y:latest")).status == "success"
    server.backend.refusal = ModelBusy("It is in use.")
    with pytest.raises(ollama.ResponseError, match="It is in use") as raised:
        await ollama_client.delete("x/y")
    assert raised.value.status_code == 409
    server.backend.refusal = ModelNotFetched("Another program fetched it.", hint="`cluster rm --yes x/y` deletes it.")
    with pytest.raises(ollama.ResponseError, match="fetched it. `cluster rm --yes x/y` deletes it"):
        await ollama_client.delete("x/y")


async def test_what_pippin_does_not_do_is_named(server, ollama_client):
    for asked in (ollama_client.create("a", from_="b"), ollama_client.copy("a", "b"), ollama_client.push("a")):
        with pytest.raises(ollama.ResponseError, match=r"/api/\w+ is not supported\.") as raised:
            await asked
        assert raised.value.status_code == 400
    assert (await server.post("/api/blobs/sha256:00", data=b"x")).status == 400
    status, body = await get(server, "/api/nowhere")
    assert (status, json.loads(body)) == (404, {"error": "There is no /api/nowhere here."})
    status, body = await get(server, "/api/chat")
    assert (status, json.loads(body)) == (405, {"error": "/api/chat does not take GET."})


# --- who may ask ---


CHANGES = [
    ("POST", "/api/pull", {"model": "x/y"}),
    ("DELETE", "/api/delete", {"model": "x/y"}),
    ("POST", "/api/generate", {"model": MODEL, "keep_alive": 0}),
    ("POST", "/api/chat", {"model": MODEL, "keep_alive": -1}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_no_page_changes_the_cluster_unless_it_is_named(serve, backend, method, path, body):
    backend.loaded["other"] = (0, 0)
    for settings in ({}, {"cors_origins": ["*"]}):
        server = await serve(**settings)
        async with server.http.request(method, f"{server.url}{path}", json=body, headers=PAGE) as response:
            assert response.status == 403
            assert "may not change the cluster" in (await response.json())["error"]
    assert backend.loaded == {"other": (0, 0)}
    server = await serve(cors_origins=[PAGE["Origin"]])
    async with server.http.request(method, f"{server.url}{path}", json=body, headers=PAGE) as response:
        assert response.status == 200
        await response.read()


async def test_local_pages_may_chat_and_load(server):
    for body in ({"messages": USER}, {}):
        answer = await server.post("/api/chat", {"model": MODEL, **body}, headers=PAGE)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, PAGE["Origin"])
    foreign = await server.post(
        "/api/chat", {"model": MODEL, "messages": USER}, headers={"Origin": "https://evil.example"}
    )
    assert foreign.status == 403


async def test_keys_are_asked_for(serve):
    server = await serve(api_keys=["secret"])
    assert (await server.post("/api/chat", {"model": MODEL, "messages": USER})).status == 401
    async with ollama.AsyncClient(host=server.url, headers={"Authorization": "Bearer secret"}) as client:
        assert (await client.chat(MODEL, USER)).message.content == "Hello there!"


# --- the greeting, and the second port ---


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_ollamas_clients_are_greeted_and_browsers_get_the_page(server, method):
    for agent, accept, greeted in (
        ("ollama/0.14.2 (arm64 darwin) Go/go1.24", "application/json", True),
        ("ollama-python/0.6", "*/*", True),
        ("Mozilla/5.0", "text/html,*/*", False),
        ("ollama-browser", "text/html", False),
        ("curl/8.0", "*/*", False),
    ):
        headers = {"User-Agent": agent, "Accept": accept}
        async with server.http.request(method, f"{server.url}/", headers=headers) as response:
            assert response.content_type == ("text/plain" if greeted else "text/html")
            if method == "GET":
                assert (await response.text() == "Ollama is running") == greeted


async def test_the_second_port_serves_the_same_and_greets_everybody_but_browsers(serve):
    server = await serve(ollama_port=0)
    assert server.ollama_port not in (None, server.port)
    async with ollama.AsyncClient(host=f"http://127.0.0.1:{server.ollama_port}") as client:
        assert (await client.chat(MODEL, USER)).message.content == "Hello there!"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.ollama_port}") as http:
        async with http.get("/") as response:
            assert await response.text() == "Ollama is running"
        async with http.get("/", headers={"Accept": "text/html"}) as response:
            assert response.content_type == "text/html"
        async with http.get("/health") as response:
            assert response.status == 200


def test_a_taken_ollama_port_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortTaken, match="Is Ollama running") as raised:
        ApiServer(["127.0.0.1"], 0, ollama_port=taken.getsockname()[1])
    assert "Ollama port" in raised.value.message
