from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import ModelBroken, ModelNotFound
from node.core.models import Alias, HeldModel
from node.core.pool import Pools
from node.core.rings import Placement
from node.gateway.model_index import ModelIndex
from node.gateway.model_names import ModelNames
from node.model.catalogue import Catalogue
from node.model.config import read_template
from node.model.json_parser import JsonParser
from tests.gateway.test_gateway import ring
from tests.text.test_constraint import DEMO

NOTHING_LOADED = Placement()


def index(
    tmp_path, *models: HeldModel, aliases: tuple[Alias, ...] = (), placement: Placement = NOTHING_LOADED
) -> ModelIndex:
    """The index of a cluster of one node, which holds these models."""
    report = SimpleNamespace(info=SimpleNamespace(id="n1"), models=models, aliases=aliases, presets=())
    agent: Any = SimpleNamespace(
        placement=placement, info=report.info, alive=lambda: [report], holders=lambda model: []
    )
    catalogue = Catalogue(tmp_path, (), tmp_path, tmp_path)
    allowlist: Any = SimpleNamespace(filter=list)

    async def small_files(model, peer):
        assert model in models
        return DEMO

    return ModelIndex(agent, catalogue, ModelNames(agent, catalogue, None), allowlist, small_files, Pools().files, 5)


async def test_a_model_is_described_by_its_small_files(tmp_path):
    held = HeldModel("a", "1", 7)
    loaded = index(tmp_path, held, placement=Placement(rings=(replace(ring("a"), context=512),)))
    described = await loaded.describe("a:latest")
    assert (described.entry.id, described.entry.revision, described.entry.bytes) == ("a", "1", 7)
    assert (described.context, described.config["model_type"], described.embeds) == (512, "llama", True)
    assert described.template == (DEMO / "chat_template.jinja").read_text()
    assert described.parameters == 0  # its weights are not here
    assert (await index(tmp_path, held).describe("a")).context == 2048
    with pytest.raises(ModelNotFound):
        await loaded.describe("b")


async def test_an_alias_is_listed_and_described_as_its_model(tmp_path):
    found = index(tmp_path, HeldModel("a", "1", 7), aliases=(Alias("gpt-4o", "a"), Alias("lost", "nothing")))
    assert [(entry.id, entry.bytes, entry.created) for entry in found.entries()] == [("a", 7, 5), ("gpt-4o", 7, 5)]
    described = await found.describe("gpt-4o:latest")
    assert (described.entry.id, described.context) == ("gpt-4o", 2048)
    assert found.known("gpt-4o").id == "gpt-4o"


async def test_an_alias_that_is_an_id_as_well_means_what_it_means_in_requests(tmp_path):
    aliases = (Alias("a", "org/b"), Alias("c", "org/hidden"))
    found = index(tmp_path, HeldModel("a", "1", 7), HeldModel("org/b", "2", 9), HeldModel("c"), aliases=aliases)
    found.allowlist.filter = lambda models: [model for model in models if model != "org/hidden"]
    assert [(entry.id, entry.revision, entry.bytes) for entry in found.entries()] == [("a", "2", 9), ("org/b", "2", 9)]
    assert (await found.describe("a")).entry.bytes == 9
    assert found.known("c") is None


def test_a_short_name_gives_the_entry_of_a_model_that_is_held(tmp_path):
    found = index(tmp_path, HeldModel("mlx-community/Qwen3-8B-4bit"))
    for name in ("qwen3", "Qwen3:8b", "mlx-community/qwen3-8b-4bit", "hf.co/mlx-community/Qwen3-8B-4bit"):
        assert found.known(name).id == "mlx-community/Qwen3-8B-4bit"
    assert found.known("llama3") is None
    with pytest.raises(ModelNotFound, match="Pippin reads safetensors"):
        found.known("hf.co/org/x-GGUF:Q4_K_M")


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, ""),
        ({"tokenizer_config.json": "{}"}, ""),
        ({"tokenizer_config.json": '{"chat_template": "x"}'}, "x"),
        ({"tokenizer_config.json": '{"chat_template": "x"}', "chat_template.jinja": "y"}, "y"),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "default", "template": "z"}]}'}, "z"),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "tool_use", "template": "z"}]}'}, ""),
        ({"tokenizer_config.json": '{"chat_template": 5}'}, ""),
        ({"tokenizer_config.json": "[]"}, None),
        ({"tokenizer_config.json": "{"}, None),
        ({"tokenizer_config.json": '{"chat_template": [5]}'}, None),
    ],
)
def test_the_template_is_read_from_where_models_have_it(tmp_path, files, template):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    if template is None:
        with pytest.raises(ModelBroken, match="chat template"):
            read_template(tmp_path, JsonParser())
    else:
        assert read_template(tmp_path, JsonParser()) == template
