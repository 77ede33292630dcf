"""Layers that nodes have in memory are used before others are loaded."""

import dataclasses
import time
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from node.core.models import HeldModel, ModelVersion, Shard
from node.core.reports import NodeReport, StageReport, StageState
from node.core.rings import Placement, Ring
from tests.placement.test_placement import (
    CABLE,
    GB,
    WIFI,
    again,
    check_rings,
    clusters,
    linked,
    model,
    node,
    placed,
    room_for,
    shape,
    specs,
)


def holding(nodes: Sequence[NodeReport], *rings: Ring) -> list[NodeReport]:
    """The nodes, with the layers of these ended rings still in memory."""

    def shards(name: str) -> tuple[Shard, ...]:
        return tuple(Shard(ModelVersion(r.model), s.start, s.end) for r in rings for s in r.stages if s.node == name)

    return [dataclasses.replace(each, idle=shards(each.info.id)) for each in nodes]


def test_a_ring_whose_node_is_back_is_made_of_the_same_layers_whatever_is_measured_now():
    before = placed([model()], linked(CABLE, "a", "b"))
    without = again([model()], linked(CABLE, "a"), before)
    assert without.refused
    back = holding(linked(WIFI, "b", "a", room=6 * GB + 1)[::-1], *before.rings)
    (ring,) = again([model()], back, without).rings
    assert shape(ring) == shape(before.rings[0])
    assert ring.id != before.rings[0].id


def test_a_node_that_does_not_know_yet_that_its_ring_is_gone_has_the_layers():
    before = placed([model()], linked(CABLE, "a", "b"))
    nodes = holding(linked(CABLE, "a", "b"), *before.rings)
    load = StageReport(before.rings[0].id, nodes[1].idle[0], StageState.READY, 1.0)
    nodes = [nodes[0], dataclasses.replace(nodes[1], idle=(), stages=(load,))]
    nodes = [dataclasses.replace(each, paths=()) for each in nodes[::-1]]
    assert shape(again([model()], nodes, Placement()).rings[0]) == shape(before.rings[0])


def test_layers_with_other_bits_of_kv_are_no_loaded_layers():
    first, last = linked(CABLE, "a", "b")
    nodes = [
        dataclasses.replace(first, idle=(Shard(ModelVersion("m"), 0, 10),)),
        dataclasses.replace(last, idle=(Shard(ModelVersion("m"), 10, 32),)),
    ]
    (loaded,) = placed([model()], nodes).rings
    assert shape(loaded) == [("a", 0, 10), ("b", 10, 32)]
    (new,) = placed([dataclasses.replace(model(), version=ModelVersion("m", kv_bits=8))], nodes).rings
    assert (shape(new) == shape(loaded), new.version.kv_bits) == (False, 8)


def test_replicas_are_made_of_loaded_layers_too():
    first = placed([model()], linked(CABLE, "a", "b", "c", "d"), max_rings=None)
    stands, gone = first.rings
    without = again([model()], [n for n in linked(CABLE, "a", "b", "c", "d") if n.info.id != gone.driver], first, None)
    assert without.rings == (stands,)
    fresh = [
        dataclasses.replace(n, models=(HeldModel("m"),) * (n.info.id != gone.driver))
        for n in linked(9.0, "d", "c", "b", "a")
    ]
    back = again([model()], holding(fresh, *first.rings), without, None)
    assert [shape(r) for r in back.rings] == [shape(r) for r in first.rings]


def test_idle_layers_take_no_room_from_another_model():
    room = room_for(model(), 32768, 8)
    first = placed([model()], [node("a", room)])
    (ring,) = again([model("k")], holding([node("a", room)], *first.rings), first).rings
    assert (ring.model, ring.context) == ("k", 32768)


@pytest.mark.parametrize("shards", [[(0, 16)], [(0, 16), (17, 32)], [(0, 16), (15, 32)], [(0, 40)]])
def test_layers_that_make_no_whole_model_change_nothing(shards):
    nodes = [
        dataclasses.replace(node(name, 6 * GB), idle=(Shard(ModelVersion("m"), *shard),))
        for name, shard in zip("ab", [*shards, (0, 16)], strict=False)
    ]
    assert placed([model()], nodes).rings == placed([model()], [node("a", 6 * GB), node("b", 6 * GB)]).rings


def test_layers_are_loaded_where_the_loaded_ones_allow_only_a_useless_context():
    small, big = node("a", room_for(model(), 4096, 1)), node("b", 64 * GB)
    before = placed([model()], [small])
    assert before.rings[0].context == 4096
    (ring,) = again([model()], holding([small, big], *before.rings), Placement()).rings
    assert shape(ring) == [("b", 0, 32)]


def test_whatever_nodes_claim_to_have_costs_little_time():
    every = tuple(Shard(ModelVersion("m"), start, end) for start in range(31) for end in range(start + 1, 32))
    nodes = [dataclasses.replace(node(f"n{k}", 6 * GB), idle=every) for k in range(12)]
    began = time.process_time()
    check_rings(placed([model()], nodes), [model()], nodes)
    assert time.process_time() - began < 2


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(specs(), clusters(), clusters(), st.integers(1, 3), st.randoms())
def test_a_ring_that_was_refused_for_a_while_is_back_as_it_was(spec, nodes, measured, min_stages, rng):
    first = placed([spec], nodes, min_stages=min_stages)
    assume(first.rings)
    lost = rng.choice(first.rings[0].stages).node
    without = again([spec], [each for each in nodes if each.info.id != lost], first, min_stages=min_stages)
    assume(without.refused)
    paths = {each.info.id: each.paths for each in measured}
    present = [dataclasses.replace(each, paths=paths.get(each.info.id, ())) for each in holding(nodes, *first.rings)]
    back = again([spec], rng.sample(present, len(present)), without, min_stages=min_stages)
    check_rings(back, [spec], nodes)
    assert shape(back.rings[0]) == shape(first.rings[0])
    assert back.rings[0].context == first.rings[0].context
