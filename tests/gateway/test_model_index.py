import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from node.core.errors import ModelBroken, ModelNotFound
from node.core.models import Alias, HeldModel
from node.core.pool import Pools
from node.core.rings import Placement
from node.gateway.model_index import ModelIndex
from node.gateway.model_names import ModelNames
from node.model.catalogue import Catalogue
from node.model.config import read_license, read_template
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
    entry = described.entry
    assert (entry.context, entry.config["model_type"], described.embeds) == (512, "llama", True)
    assert described.template == (DEMO / "chat_template.jinja").read_text()
    assert entry.parameters == 0  # its weights are not here
    assert described.license == read_license(DEMO)
    assert (await index(tmp_path, held).describe("a")).entry.context == 16384
    with pytest.raises(ModelNotFound):
        await loaded.describe("b")


async def test_an_alias_is_listed_and_described_as_its_model(tmp_path):
    found = index(tmp_path, HeldModel("a", "1", 7), aliases=(Alias("gpt-4o", "a"), Alias("lost", "nothing")))
    assert [(entry.id, entry.bytes, entry.created) for entry in found.entries()] == [("a", 7, 5), ("gpt-4o", 7, 5)]
    described = await found.describe("gpt-4o:latest")
    assert (described.entry.id, described.entry.model, described.entry.context) == ("gpt-4o", "a", 16384)
    assert found.known("gpt-4o").id == "gpt-4o"


async def test_an_alias_that_is_an_id_as_well_means_what_it_means_in_requests(tmp_path):
    aliases = (Alias("a", "org/b"), Alias("c", "org/hidden"))
    found = index(tmp_path, HeldModel("a", "1", 7), HeldModel("org/b", "2", 9), HeldModel("c"), aliases=aliases)
    found.allowlist.filter = lambda models: [model for model in models if model != "org/hidden"]
    assert [(entry.id, entry.revision, entry.bytes) for entry in found.entries()] == [("a", "2", 9), ("org/b", "2", 9)]
    assert (await found.describe("a")).entry.bytes == 9
    assert found.known("c") is None


async def test_an_entry_is_told_with_what_the_files_here_say(tmp_path):
    shutil.copytree(DEMO, tmp_path / "demo")
    (tmp_path / "demo" / "LICENSE.txt").write_text("Do as you like.")
    catalogue = Catalogue(tmp_path, (), tmp_path / "none", tmp_path / "none")
    catalogue.refresh()
    (held,) = catalogue.local()
    found = index(tmp_path, held, HeldModel("far", "2", 9), aliases=(Alias("gpt-4o", "demo"),))
    found.catalogue = catalogue
    own, far, alias = [await found.told(each) for each in found.entries()]
    parameters = catalogue.layouts.of(tmp_path / "demo").parameters
    assert (own.id, own.config["model_type"], own.context, own.parameters) == ("demo", "llama", 16384, parameters)
    assert (far.config, far.context, far.parameters) == ({}, 0, 0)
    assert (alias.id, alias.model, alias.config, alias.parameters) == ("gpt-4o", "demo", own.config, parameters)

    shutil.rmtree(tmp_path / "demo")  # what is known of files of one fingerprint is not read again
    found.agent.placement = Placement(rings=(replace(ring("demo", held.revision), context=512),))
    assert await found.told(found.entries()[0]) == replace(own, context=512)


async def test_an_entry_whose_files_are_damaged_is_listed_all_the_same(tmp_path):
    shutil.copytree(DEMO, tmp_path / "demo")
    catalogue = Catalogue(tmp_path, (), tmp_path / "none", tmp_path / "none")
    catalogue.refresh()
    found = index(tmp_path, *catalogue.local())
    found.catalogue = catalogue
    (tmp_path / "demo" / "config.json").write_text("{")
    (entry,) = found.entries()
    assert await found.told(entry) == entry


async def test_loaded_models_that_take_pictures_are_known(tmp_path, picture_model):
    for folder, name in ((picture_model, "seer"), (picture_model, "unloaded"), (DEMO, "demo")):
        shutil.copytree(folder, tmp_path / name)
    catalogue = Catalogue(tmp_path, (), tmp_path / "none", tmp_path / "none")
    catalogue.refresh()
    held = {each.id: each for each in catalogue.local()}
    rings = tuple(ring(name, held[name].revision) for name in ("seer", "demo"))
    found = index(tmp_path, *held.values(), aliases=(Alias("eye", "seer"),), placement=Placement(rings=rings))
    found.catalogue = catalogue
    told = [await found.told(each) for each in found.entries()]
    assert {each.id: each.takes_pictures for each in told} == {
        "demo": False,
        "seer": True,
        "unloaded": True,
        "eye": True,
    }
    assert await found.ready_for_pictures() == ["seer"]


@pytest.mark.parametrize(
    ("kept", "takes"),
    [
        ("model.safetensors", False),
        ("model.safetensors.index.json", False),
        ("config.json", True),  # nothing here names the tensors
    ],
)
async def test_a_conversion_for_text_only_takes_no_pictures(tmp_path, text_only_model, kept, takes):
    shutil.copytree(text_only_model, tmp_path / "reader")
    for name in ("model.safetensors", "model.safetensors.index.json"):
        if name != kept:
            (tmp_path / "reader" / name).unlink()
    found = index(tmp_path, HeldModel("reader", "1", 7))
    found.small_files = AsyncMock(return_value=tmp_path / "reader")
    assert (await found.describe("reader")).entry.takes_pictures is takes


@pytest.mark.parametrize("name", ["LICENSE", "LICENSE.txt", "LICENSE.md"])
def test_a_license_is_read_if_it_is_here(tmp_path, name):
    assert read_license(tmp_path) == ""
    (tmp_path / name).write_bytes(b"\xff" + b"a" * 2**20)
    assert read_license(tmp_path) == "\ufffd" + "a" * (2**16 - 1)


def test_the_demo_has_the_license_of_the_repository():
    assert read_license(DEMO) == (DEMO.parents[2] / "LICENSE").read_text()


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
