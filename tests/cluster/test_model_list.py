from dataclasses import replace

import pytest

from node.cluster.model_list import build_models
from node.core.models import HeldModel, KvCost, ModelSpec, ModelVersion
from node.core.rings import Fence, Placement, Refusal
from tests.cluster.test_status import load, peer, ring, view

SHORT = {"small": "org/m", "m": "org/m", "other": "org/other"}
ALIASES = {"gpt-4o": "org/m"}
USABLE = 12 * 10**9
"""Of each node."""


def listed(view, allowed=list):
    return {model["id"]: model for model in build_models(view, SHORT, ALIASES, allowed, {}, {})["models"]}


def holding(node, *models, **more):
    found = peer(node, **more)
    return replace(found, report=replace(found.report, models=models))


def test_held_models_are_listed_with_their_holders_and_other_names():
    found = listed(view(holding(1, HeldModel("org/m", "r", 5), HeldModel("b")), holding(2, HeldModel("org/m", "r", 5))))
    assert list(found) == ["b", "org/m"]
    assert found["org/m"] == {
        "id": "org/m",
        "state": "unloaded",
        "bytes": 5,
        "nodes": ["id-1", "id-2"],
        "fits": True,
        "reason": "",
        "short_names": ["small", "m"],
        "aliases": ["gpt-4o"],
    }


@pytest.mark.parametrize(("size", "fits"), [(2 * USABLE, True), (2 * USABLE + 1, False)])
def test_a_model_fits_if_its_weights_do(size, fits):
    found = listed(view(holding(1, HeldModel("m", "", size)), peer(2)))["m"]
    assert found["fits"] == fits
    assert found["reason"] == ("" if fits else "The weights need 22.4 GB; 2 nodes have 22.4 GB for models.")


def test_a_draining_node_has_no_room():
    found = holding(1, HeldModel("m", "", 5))
    drained = replace(found, report=replace(found.report, draining=True))
    assert listed(view(drained))["m"]["reason"] == "The weights need 5 B; 0 nodes have 0 B for models."


def test_a_placed_model_fits_and_its_size_is_the_placements():
    spec = ModelSpec(ModelVersion("m"), (7, 8), 5, (KvCost(1), KvCost(1)), (1,), 100)
    seen = view(peer(1, loads=(load(0),)), rings=(ring(1),))
    found = listed(replace(seen, placement=replace(seen.placement, specs=(spec,))))["m"]
    assert (found["state"], found["bytes"], found["fits"], found["nodes"]) == ("ready", 20, True, [])
    seen = view(holding(1, HeldModel("m", "", 33), loads=(load(0),)), rings=(ring(1),))
    found = listed(replace(seen, placement=replace(seen.placement, specs=(spec,))))["m"]
    assert (found["bytes"], found["fits"]) == (33, True), "what its files take on the disk"


def test_a_refused_model_does_not_fit():
    refused = Placement(Fence(1, 1), "id-1", (), (Refusal("m", "no_capacity", "m needs 9 GB."),))
    found = listed(replace(view(peer(1)), placement=refused))["m"]
    assert (found["state"], found["fits"], found["reason"]) == ("refused", False, "m needs 9 GB.")


def test_models_that_requests_may_not_load_are_left_out():
    assert listed(view(holding(1, HeldModel("a"), HeldModel("b"))), lambda found: sorted(found - {"a"})).keys() == {"b"}


def test_models_in_another_format_are_told_unless_some_node_holds_them():
    unusable, sizes = {"a": "GGUF.", "b": "GGUF."}, {"org/other": 7}
    found = build_models(view(holding(1, HeldModel("b"))), SHORT, ALIASES, list, unusable, sizes)
    assert found["unusable"] == [{"id": "a", "reason": "GGUF."}]
    assert found["sizes"] == {"org/other": 7}
