"""Large JSON of models' files: a sandbox parses it, with the same result as this process."""

import asyncio
import json
import os

import pytest

from node.core.errors import ModelBroken
from node.model import json_parser
from node.model.json_parser import PARSED_HERE, JsonParser
from node.model.weights import Weights
from node.text.sandboxed_parser import SandboxedParser

TENSORS = {
    f"model.layers.{number}.w": {"dtype": "U8", "shape": [0, 2], "data_offsets": [0, 0]} for number in range(20_000)
}
HEADER = json.dumps(TENSORS).encode()


@pytest.fixture
async def sandboxed(sandbox_server):
    parser = SandboxedParser(sandbox_server)
    yield parser
    await parser.end()


@pytest.fixture
def seen(monkeypatch):
    """The processes that parsed something here: only this one."""
    parsed = []
    for kind, parse in json_parser._PARSERS.items():
        seen = lambda *given, parse=parse: parsed.append(os.getpid()) or parse(*given)  # noqa: E731
        monkeypatch.setitem(json_parser._PARSERS, kind, seen)
    return parsed


async def test_a_large_file_is_parsed_in_a_sandbox(sandboxed, seen):
    here, there = JsonParser(), JsonParser(sandboxed)
    tensors, _ = here.header(HEADER, "model.safetensors")
    description = Weights(tensors, {"model.safetensors": 0}).to_json()
    index = json.dumps({"weight_map": {name * 2: "model.safetensors" for name in tensors}}).encode()
    template = json.dumps({"chat_template": [{"name": "default", "template": "x" * PARSED_HERE}]}).encode()
    template += b" " * PARSED_HERE
    cases = [("header", HEADER, "model.safetensors"), ("description", description + b" " * PARSED_HERE)]
    cases += [("index", index + b" " * PARSED_HERE), ("template", template)]
    for kind, *given in cases:
        assert len(given[0]) > PARSED_HERE
        expected = getattr(here, kind)(*given)
        seen.clear()
        assert await asyncio.to_thread(getattr(there, kind), *given) == expected
        assert seen == [], kind
    assert there.header(b"{}", "model.safetensors") == ({}, 0)
    assert seen == [os.getpid()], "small files are parsed here"


@pytest.mark.parametrize(
    "raw", [b"[" * 2 * PARSED_HERE, b" " * 2 * PARSED_HERE, b'{"a": "' + b"x" * PARSED_HERE + b'"}']
)
async def test_what_is_wrong_is_told(sandboxed, raw):
    with pytest.raises(ValueError, match="Error"):
        await asyncio.to_thread(JsonParser(sandboxed).header, raw, "model.safetensors")


async def test_more_tensors_than_any_model_has(sandboxed, monkeypatch):
    monkeypatch.setattr("node.model.safetensors_header.MAX_TENSORS_OF_FILE", 100)
    with pytest.raises(ValueError, match="more than 100 tensors"):
        JsonParser().header(HEADER, "model.safetensors")


async def test_a_sandbox_that_fails_is_an_error_of_the_model(sandboxed, monkeypatch):
    async def ask(_request, *, client):
        raise node_sandbox.SandboxFailed("it took more than 60 s")

    from node.text import sandbox as node_sandbox

    monkeypatch.setattr(sandboxed._sandboxes, "ask", ask)
    with pytest.raises(ModelBroken, match="more than 60 s"):
        await asyncio.to_thread(JsonParser(sandboxed).header, HEADER, "model.safetensors")
