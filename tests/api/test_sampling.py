"""How an answer is sampled where its request does not say it: as the model's authors propose, in every API."""

import json

import pytest

from node.core.errors import ModelBroken
from node.core.generation import RANGES
from node.model.config import read_sampling

MODEL = "pippin/demo"
MESSAGES = [{"role": "user", "content": "Hello"}]
PENALTIES = {"presence_penalty": 0.3, "frequency_penalty": -0.2}
NO_PENALTIES = dict.fromkeys(PENALTIES, 0.0)
PROPOSED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, **PENALTIES}
OPENAI = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, **NO_PENALTIES}
OLLAMA = {**OPENAI, "temperature": 0.8, "top_p": 0.9, "top_k": 40}
REQUESTS = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}, OPENAI),
    "completions": ("/v1/completions", {"prompt": "Hello"}, OPENAI),
    "responses": ("/v1/responses", {"input": "Hello"}, OPENAI),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 8}, OPENAI),
    "ollama": ("/api/chat", {"messages": MESSAGES, "stream": False}, OLLAMA),
    "ollama's generate": ("/api/generate", {"prompt": "Hello", "stream": False}, OLLAMA),
    "ollama's raw generate": ("/api/generate", {"prompt": "Hello", "stream": False, "raw": True}, OLLAMA),
}


async def sampled(server, path, body):
    server.backend.say("Hi")
    answer = await server.post(path, {"model": MODEL, **body})
    assert answer.status == 200, answer.body
    sampling = server.backend.requests[-1].sampling
    return {name: getattr(sampling, name) for name in RANGES}


@pytest.mark.parametrize("api", REQUESTS)
async def test_a_silent_request_is_sampled_as_the_model_proposes(server, api):
    path, body, defaults = REQUESTS[api]
    assert await sampled(server, path, body) == defaults
    server.backend.model.sampling = PROPOSED
    assert await sampled(server, path, body) == PROPOSED
    server.backend.model.sampling = {"temperature": 0.3}
    assert await sampled(server, path, body) == {**defaults, "temperature": 0.3}


@pytest.mark.parametrize("api", REQUESTS)
async def test_what_a_request_says_counts_also_if_it_is_the_default(server, api):
    path, body, _ = REQUESTS[api]
    server.backend.model.sampling = PROPOSED
    said = {"temperature": 1.0, "top_p": 1.0}
    body = body | ({"options": said} if path.startswith("/api/") else said)
    assert await sampled(server, path, body) == PROPOSED | said


async def test_defaults_of_a_request_count_after_the_models(server):
    path, body, _ = REQUESTS["chat"]
    body = {**body, "top_p": 0.5, "sampling_defaults": {"temperature": 0.7, "top_p": 0.95, "top_k": None}}
    assert await sampled(server, path, body) == {**OPENAI, "temperature": 0.7, "top_p": 0.5}
    server.backend.model.sampling = {"temperature": 0.2}
    assert await sampled(server, path, body) == {**OPENAI, "temperature": 0.2, "top_p": 0.5}
    refused = await server.chat(sampling_defaults={"temperature": 3})
    assert refused.status == 400
    assert refused.error["param"] == "sampling_defaults.temperature"


async def test_the_apis_that_tell_it_tell_it(server):
    server.backend.model.sampling = {"temperature": 0.6, "repetition_penalty": 1.1}
    server.backend.say("Hi")
    response = (await server.post("/v1/responses", {"model": MODEL, "input": "Hello"})).json
    assert (response["temperature"], response["top_p"]) == (0.6, 1.0)
    shown = (await server.post("/api/show", {"model": MODEL})).json["parameters"].splitlines()
    told = dict(line.split() for line in shown)
    assert (told["temperature"], told["top_k"], told["repeat_penalty"]) == ("0.6", "40", "1.1")


def write(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    return tmp_path


def test_what_the_models_authors_propose(tmp_path):
    assert read_sampling(tmp_path) == {}
    given = {**PROPOSED, "do_sample": False, "eos_token_id": [1, 2], "max_new_tokens": 10}
    assert read_sampling(write(tmp_path, json.dumps(given))) == PROPOSED
    assert read_sampling(write(tmp_path, json.dumps(dict.fromkeys(PROPOSED)))) == {}
    assert read_sampling(write(tmp_path, "[]")) == {}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "-5", "9" * 400, "true", '"1"', "[1]", "{}"]
)
def test_absurd_values_are_ignored_with_one_line_in_the_log(tmp_path, caplog, name, value):
    folder = write(tmp_path, f'{{"{name}": {value}, "{"top_p" if name == "min_p" else "min_p"}": 0.5}}')
    for _ in range(2):
        assert list(read_sampling(folder).values()) == [0.5]
    (record,) = caplog.records
    assert name in record.getMessage()
    assert len(record.getMessage()) < 500


def test_a_file_that_is_no_json_is_an_error_without_the_users_path(tmp_path):
    with pytest.raises(ModelBroken, match="generation_config.json of ") as caught:
        read_sampling(write(tmp_path, "{"))
    assert str(tmp_path) not in caught.value.message


def test_top_k_is_a_whole_number(tmp_path):
    assert read_sampling(write(tmp_path, '{"top_k": 2.5}')) == {}
