from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import ModelNotFound
from node.core.models import Alias, HeldModel
from node.core.types import Placement
from node.gateway.model_names import ModelNames
from node.model.catalogue import Catalogue


@pytest.fixture
def catalogue(tmp_path) -> Catalogue:
    return Catalogue(tmp_path, (), tmp_path, tmp_path)


def names(catalogue: Catalogue, **aliases: list[Alias]) -> ModelNames:
    """Names as the node `me` knows them. `aliases`: by node."""
    reports = [
        SimpleNamespace(info=SimpleNamespace(id=node), models=(HeldModel("org/held"),), aliases=tuple(given))
        for node, given in aliases.items()
    ]
    agent: Any = SimpleNamespace(placement=Placement(), info=SimpleNamespace(id="me"), alive=lambda: reports)
    return ModelNames(agent, catalogue)


def test_an_alias_of_any_node_means_its_model(catalogue):
    known = names(catalogue, me=[], other=[Alias("gpt-4o", "held"), Alias("claude", "qwen3:32b")])
    assert known.match("gpt-4o") == known.find(" gpt-4o") == "org/held"
    assert known.aliases() == {"claude": "mlx-community/Qwen3-32B-4bit", "gpt-4o": "org/held"}
    assert known.match("held") == "org/held"
    assert known.match("claude-2") is None


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


def test_an_alias_of_no_model_is_not_listed_and_its_model_is_named_in_the_error(catalogue):
    known = names(catalogue, me=[Alias("gpt-4o", "qwn3"), Alias("bad", "a/b/c")])
    assert known.aliases() == {}
    with pytest.raises(ModelNotFound, match="qwn3"):
        known.find("gpt-4o")
