from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import ModelNotFound
from node.core.models import Alias, HeldModel, Preset
from node.core.pool import Pools
from node.core.rings import Placement
from node.gateway.model_names import ModelNames
from node.model.catalogue import Catalogue


@pytest.fixture
def catalogue(tmp_path) -> Catalogue:
    return Catalogue(tmp_path, (), tmp_path, tmp_path)


def names(catalogue: Catalogue, **told: list[Alias | Preset]) -> ModelNames:
    """Names as the node `me` knows them. `told`: aliases and presets by node."""
    reports = [
        SimpleNamespace(
            info=SimpleNamespace(id=node),
            models=(HeldModel("org/held"),),
            aliases=tuple(each for each in given if isinstance(each, Alias)),
            presets=tuple(each for each in given if isinstance(each, Preset)),
        )
        for node, given in told.items()
    ]
    agent: Any = SimpleNamespace(placement=Placement(), info=SimpleNamespace(id="me"), alive=lambda: reports, head="me")
    return ModelNames(agent, catalogue, Pools().files)


async def test_an_alias_of_any_node_means_its_model(catalogue):
    known = names(catalogue, me=[], other=[Alias("gpt-4o", "held"), Alias("claude", "qwen3:32b")])
    assert known.match("gpt-4o") == await known.id_of(" gpt-4o") == "org/held"
    assert known.aliases() == {"claude": "mlx-community/Qwen3-32B-4bit", "gpt-4o": "org/held"}
    assert known.match("held") == "org/held"
    assert known.match("claude-2") is None


async def test_a_model_that_nobody_serves_is_named_when_the_head_has_heard_of_it(catalogue):
    """A look at the disk in between may have found it, a moment before its request."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    known = names(catalogue, me=[])
    agent: Any = known.agent
    agent.head = "other"
    agent.states = SimpleNamespace(lacks_news=lambda node: node == "other" and len(waited) < 3)
    agent.changed = SimpleNamespace(wait=wait)
    assert await known.id_of("held") == "org/held"
    assert len(waited) == 3
    agent.placement = SimpleNamespace(rings=[SimpleNamespace(model="org/held")])
    waited.clear()
    assert await known.id_of("held") == "org/held"
    assert not waited


def test_the_tag_of_ollamas_clients_is_no_part_of_an_alias(catalogue):
    known = names(catalogue, me=[Alias("gpt-4o", "org/held"), Alias("llama:latest", "org/held")])
    for name in ("gpt-4o:latest", "llama:latest", "org/held:latest"):
        assert known.match(name) == "org/held"


def test_the_aliases_of_the_asked_node_count_first(catalogue):
    both = {"a": [Alias("x", "org/a")], "me": [Alias("x", "org/mine")], "z": [Alias("x", "org/z")]}
    assert names(catalogue, **both).match("x") == "org/mine"
    del both["me"]
    assert names(catalogue, **both).match("x") == "org/z"


def test_an_alias_comes_before_a_model_of_its_name(catalogue):
    assert names(catalogue, me=[Alias("org/held", "org/other")]).match("org/held") == "org/other"


async def test_an_alias_of_no_model_is_not_listed_and_its_model_is_named_in_the_error(catalogue):
    known = names(catalogue, me=[Alias("gpt-4o", "qwn3"), Alias("bad", "a/b/c")])
    assert known.aliases() == {}
    with pytest.raises(ModelNotFound, match="qwn3"):
        await known.id_of("gpt-4o")


def test_presets_of_any_node_count_by_any_name_of_the_model_and_those_of_the_asked_node_first(catalogue):
    known = names(
        catalogue,
        me=[Preset("held", {"temperature": 0.2})],
        other=[
            Alias("mine", "org/held"),
            Preset("mine", {"temperature": 0.9, "top_k": 20.0}),
            Preset("x", {"min_p": 0.1}),
        ],
    )
    assert known.preset("org/held") == {"temperature": 0.2, "top_k": 20}
    assert known.preset("org/another") == {}


def test_a_peers_preset_that_no_request_may_have_is_ignored(catalogue):
    strange = {"temperature": float("nan"), "top_p": -1.0, "top_k": 2.5, "min_p": float("inf"), "seed": 1.0}
    known = names(catalogue, other=[Preset("held", strange), Preset("a/b/c", {"top_p": 0.5})])
    assert known.preset("org/held") == {}
