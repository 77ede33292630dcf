import dataclasses
import itertools
import re
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core.models import HeldModel, KvCost, ModelSpec, ModelVersion, Shard
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport, Path
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.core.units import format_bytes
from node.placement.footprint import STAGE_RESERVE, Footprint, footprint, stage_bytes
from node.placement.place import Rules, place
from node.placement.search import CONTEXTS
from node.placement.split import best_orders, latency

GB, MB = 2**30, 2**20
FENCE = Fence(3, 4)


def node(name: str, usable: int, *, paths: Sequence[tuple[str, float]] = (), models: Sequence[str] = ()) -> NodeReport:
    info = NodeInfo(name, 1, f"mini-{name}", "home", "1", 1, (), 1, 2)
    found = tuple(Path(to, "10.0.0.1", rtt) for to, rtt in paths)
    return NodeReport(info, Memory(2 * usable, usable), paths=found, models=tuple(map(HeldModel, models)))


def model(
    name: str = "m",
    layers: int = 32,
    layer: int = 200 * MB,
    ends: int = 500 * MB,
    kv: int = 4096,
    max_context: int = 131072,
) -> ModelSpec:
    """By default 6.4 GB of layers and 128 KB of cache per token."""
    cuts = tuple(range(1, layers))
    return ModelSpec(
        ModelVersion(name), (layer,) * layers, ends, (KvCost(kv),) * layers, cuts, max_context, head_bytes=ends
    )


def placed(
    models: Sequence[ModelSpec], nodes: Sequence[NodeReport], max_rings: int | None = 1, **rules: object
) -> Placement:
    return place(models, nodes, Rules(max_rings=max_rings, **rules), fence=FENCE, head="a")


def only(models: Sequence[ModelSpec], nodes: Sequence[NodeReport], **options: object) -> Ring:
    (ring,) = placed(models, nodes, **options).rings
    return ring


def shape(ring: Ring) -> list[tuple[str, int, int]]:
    return [(s.node, s.start, s.end) for s in ring.stages]


def room_for(spec: ModelSpec, context: int, sessions: int) -> int:
    return Footprint(spec, context, sessions).whole


# --- how many nodes, which context --------------------------------------------------------------------------------


def test_what_fits_one_node_stays_on_one():
    placement = placed([model()], [node("a", 64 * GB), node("b", 64 * GB)])
    assert placement == Placement(
        FENCE, "a", (Ring("m@3.4.a", ModelVersion("m"), (StageSpec("a", 0, 32),), 32768, 8, fence=FENCE),)
    )


@pytest.mark.parametrize(
    ("room", "expected"),
    [((32768, 8), (32768, 8)), ((32768, 3), (32768, 2)), ((32768, 1), (32768, 1)), ((16384, 1), (16384, 1))],
)
def test_a_long_context_goes_before_many_sessions(room, expected):
    ring = only([model()], [node("a", room_for(model(), *room))])
    assert (ring.context, ring.max_sessions) == expected


def test_another_node_is_taken_rather_than_a_useless_context():
    spec = model()
    nodes = [node("a", room_for(spec, 4096, 1)), node("b", 4 * GB)]
    assert len(only([spec], nodes).stages) == 2
    assert only([spec], nodes).context >= 8192
    assert (only([spec], nodes[:1]).context, only([spec], nodes[:1]).max_sessions) == (4096, 1)


def test_a_useful_context_is_not_spread_for_a_longer_one():
    spec = model()
    nodes = [node("a", room_for(spec, 8192, 1)), node("b", 64 * MB)]
    assert shape(only([spec], nodes)) == [("a", 0, 32)]


@pytest.mark.parametrize(("made_for", "context"), [(131072, 32768), (10000, 8192), (2048, 2048), (512, 512)])
def test_no_context_is_longer_than_the_model_was_made_for(made_for, context):
    assert only([model(max_context=made_for)], [node("a", 64 * GB)]).context == context


def test_contexts_and_sessions_can_be_limited():
    ring = only([model()], [node("a", 64 * GB)], contexts=[4096], max_sessions=[3])
    assert (ring.context, ring.max_sessions) == (4096, 3)


# --- where to cut -------------------------------------------------------------------------------------------------


def test_layers_are_balanced_with_the_ends_on_the_driver():
    ring = only([model(ends=800 * MB)], [node("a", 6 * GB), node("b", 6 * GB)], contexts=[8192], max_sessions=[1])
    assert shape(ring) == [("a", 0, 14), ("b", 14, 32)]


def test_an_embedding_beside_the_head_is_held_but_not_read():
    spec = dataclasses.replace(model(ends=1600 * MB), head_bytes=800 * MB)
    ring = only([spec], [node("a", 6 * GB), node("b", 6 * GB)], contexts=[8192], max_sessions=[1])
    assert shape(ring) == [("a", 0, 14), ("b", 14, 32)]


def test_scores_of_attention_that_is_not_fused_take_room_on_each_node():
    plain, spec = model(), dataclasses.replace(model(), score_bytes=16384)
    one, other = (Footprint(each, 32768, 1) for each in (plain, spec))
    assert other.reserve - one.reserve == 512 * MB - 200 * MB  # in place of the largest layer's copy
    room = [node(name, one.stage(0, 16, driver=True) + 1) for name in "ab"]
    assert only([plain], room, max_sessions=[1]).context == 32768
    assert only([spec], room, max_sessions=[1]).context == 16384


def test_a_ring_has_the_bits_of_the_kv_that_the_head_wants_now():
    nodes = [node("a", 64 * GB)]
    before = placed([model()], nodes)
    assert before.rings[0].version.kv_bits == 0
    spec = dataclasses.replace(model(kv=2176), version=ModelVersion("m", kv_bits=8))
    after = again([spec], nodes, before)
    assert [ring.version.kv_bits for ring in after.rings if not ring.retiring] == [8]
    assert again([spec], nodes, after).rings[-1].id == after.rings[-1].id


DRAFT = ModelSpec(ModelVersion("small", "r"), (10 * MB,) * 4, 20 * MB, (KvCost(4096),) * 4, (1, 2, 3), 4096)


def test_a_driver_has_the_draft_model_too():
    plain, spec = model(), dataclasses.replace(model(), draft=DRAFT)
    assert Footprint(spec, 8192, 1).whole == Footprint(plain, 8192, 1).whole + Footprint(DRAFT, 4096, 1).whole
    one, other = (Footprint(each, 8192, 1) for each in (plain, spec))
    assert other.stage(16, 32, driver=False) == one.stage(16, 32, driver=False)
    more = other.stage(0, 16, driver=True) - one.stage(0, 16, driver=True)
    assert more == Footprint(DRAFT, 4096, 1).whole > 60 * MB + 4 * 4096 * 4096
    ring = only([spec], [node("a", 6 * GB), node("b", 6 * GB)], contexts=[8192], max_sessions=[1])
    assert ring.draft == Shard(ModelVersion("small", "r"), 0, 4)
    assert only([spec], [node("a", 64 * GB)]).draft == ring.draft


def test_one_node_has_no_draft_model_for_windows_and_recurrent_states():
    for kv in (KvCost(4096, window=512), KvCost(0, fixed=1 << 20)):
        plain = dataclasses.replace(model(), kv=(kv, *model().kv[1:]))
        spec = dataclasses.replace(plain, draft=DRAFT)
        assert Footprint(spec, 8192, 1).whole == Footprint(plain, 8192, 1).whole
        assert only([spec], [node("a", 64 * GB)]).draft is None
        nodes = [node("a", 6 * GB), node("b", 6 * GB)]
        assert only([spec], nodes, contexts=[8192], max_sessions=[1]).draft


def test_a_driver_has_the_mtp_layer_too():
    plain = model()
    layer = ModelSpec(plain.version, (30 * MB,), 20 * MB, (KvCost(4096),), (), 8192)
    spec = dataclasses.replace(plain, mtp=layer)
    one, other = (Footprint(each, 8192, 1) for each in (plain, spec))
    assert other.whole == one.whole + Footprint(layer, 8192, 1).whole
    assert other.stage(16, 32, driver=False) == one.stage(16, 32, driver=False)
    more = other.stage(0, 16, driver=True) - one.stage(0, 16, driver=True)
    assert more == Footprint(layer, 8192, 1).whole > 50 * MB + 8192 * 4096
    work = other.work(0, 16, driver=True) - one.work(0, 16, driver=True)
    assert work == 50 * MB + plain.head_bytes, "the model's own LM head makes the guess"
    nodes = [node("a", 6 * GB), node("b", 6 * GB)]
    ring = only([spec], nodes, contexts=[8192], max_sessions=[1])
    assert ring.draft == Shard(plain.version, 32, 33)
    assert only([dataclasses.replace(spec, draft=DRAFT)], nodes).draft == Shard(DRAFT.version, 0, 4)


def test_a_driver_with_a_draft_model_gets_fewer_layers():
    """By the bytes that it reads for a guess: here those of four layers."""
    draft = dataclasses.replace(DRAFT, layer_bytes=(200 * MB,) * 4)
    nodes = [node("a", 6 * GB), node("b", 6 * GB)]
    rings = [
        only([dataclasses.replace(model(), draft=each)], nodes, contexts=[8192], max_sessions=[1])
        for each in (None, draft)
    ]
    assert [shape(ring)[0] for ring in rings] == [("a", 0, 15), ("a", 0, 13)]


def test_a_ring_gets_the_draft_model_that_is_wanted_now():
    nodes = [node("a", 6 * GB), node("b", 6 * GB)]
    before = placed([model()], nodes)
    after = again([dataclasses.replace(model(), draft=DRAFT)], nodes, before)
    assert [ring.draft for ring in after.rings if not ring.retiring] == [Shard(ModelVersion("small", "r"), 0, 4)]
    assert again([dataclasses.replace(model(), draft=DRAFT)], nodes, after).rings[-1].id == after.rings[-1].id


def test_a_model_that_fits_only_without_its_draft_model_has_none():
    costs = Footprint(model(), 2048, 1)
    nodes = [node("a", costs.stage(0, 16, driver=True) + MB), node("b", costs.stage(16, 32, driver=False) + MB)]
    spec = dataclasses.replace(model(), draft=DRAFT)
    before = placed([spec], nodes, contexts=[2048], max_sessions=[1])
    assert ([ring.draft for ring in before.rings], before.refused) == ([None], ())


def test_a_small_node_gets_what_it_can_hold():
    ring = only([model()], [node("a", 7 * GB), node("b", 2 * GB)], contexts=[8192], max_sessions=[1])
    assert [s.node for s in ring.stages] == ["a", "b"]
    assert stage_bytes(model(), ring, ring.stages[1]) <= 2 * GB
    assert stage_bytes(model(), ring, ring.stages[1]) + 232 * MB > 2 * GB  # one layer more would not fit


def test_cuts_are_the_models():
    spec = dataclasses.replace(model(), cuts=(20,))
    assert shape(only([spec], [node("a", 64 * GB), node("b", 64 * GB)], min_stages=5)) == [("a", 0, 20), ("b", 20, 32)]


@pytest.mark.parametrize(("wanted", "stages"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_model_is_spread_on_demand_as_far_as_nodes_go(wanted, stages):
    ring = only([model()], [node(n, 16 * GB) for n in "abc"], min_stages=wanted)
    assert len(ring.stages) == stages
    assert [(s.start, s.end) for s in ring.stages] == {1: [(0, 32)], 2: [(0, 15), (15, 32)]}.get(
        stages, [(0, 9), (9, 20), (20, 32)]
    )


def test_a_node_without_room_is_no_node_to_spread_to():
    nodes = [node("a", 16 * GB), node("b", 16 * GB), node("c", 10 * MB)]
    assert len(only([model()], nodes, min_stages=3).stages) == 2


# --- which nodes, in which order ----------------------------------------------------------------------------------


def test_a_node_that_has_the_files_is_taken_first():
    nodes = [node("a", 64 * GB), node("b", 48 * GB, models=["m"])]
    assert only([model()], nodes).driver == "b"


def test_the_quickest_links_decide_which_nodes_share_a_model():
    nodes = [
        node("a", 5 * GB, paths=[("b", 8.0), ("c", 0.3)]),
        node("b", 5 * GB, paths=[("a", 8.0), ("c", 8.0)]),
        node("c", 5 * GB, paths=[("a", 0.3), ("b", 8.0)]),
    ]
    assert {s.node for s in only([model()], nodes).stages} == {"a", "c"}


def test_a_ring_of_four_follows_the_cables():
    cables = ["ac", "cb", "bd", "da"]

    def paths(n: str) -> list[tuple[str, float]]:
        return [(m, 0.5 if n + m in cables or m + n in cables else 9.0) for m in "abcd" if m != n]

    ring = only([model()], [node(n, 16 * GB, paths=paths(n)) for n in "abcd"], min_stages=4)
    around = "".join(s.node for s in ring.stages)
    assert around in {"acbd", "adbc"}


def test_noise_of_measuring_does_not_decide_who_drives():
    nodes = [
        node("a", 5 * GB, paths=[("b", 0.31)]),
        node("b", 5 * GB, paths=[("a", 0.29), ("c", 0.2)]),
        node("c", 5 * GB),
    ]
    assert latency(tuple(nodes[:2])) == latency((nodes[1], nodes[0])) == 0.5
    assert only([model()], nodes[:2]).driver == "a"


def test_many_nodes_are_ordered_quickly():
    nodes = [node(f"n{i:02}", 4 * GB, paths=[(f"n{(i + 1) % 12:02}", 0.2)]) for i in range(12)]
    names = [n.info.id for n in nodes]
    costs, free, pace = footprint(model(), 8192, 1), dict.fromkeys(names, 4 * GB), dict.fromkeys(names, 1e-8)
    orders = best_orders(model(), costs, nodes, 12, free, pace)
    assert latency(orders[0]) == pytest.approx(1.0)
    began = time.process_time()
    ring = only([model(layers=70, layer=GB // 2)], nodes, contexts=[8192], max_sessions=[1])
    assert len(ring.stages) == 12
    assert time.process_time() - began < 2


# --- what stands stays --------------------------------------------------------------------------------------------


def again(
    models: Sequence[ModelSpec],
    nodes: Sequence[NodeReport],
    current: Placement,
    max_rings: int | None = 1,
    **rules: object,
) -> Placement:
    return place(models, nodes, Rules(max_rings=max_rings, **rules), fence=Fence(3, 5), head="a", current=current)


def test_a_ring_that_stands_is_kept_as_it_is():
    nodes = [node("a", 6 * GB), node("b", 6 * GB)]
    first = placed([model()], nodes)
    second = again([model()], nodes[::-1], first)
    assert second.rings == first.rings
    assert second.fence == Fence(3, 5)


def test_a_ring_is_kept_when_a_node_joins_that_gives_no_better_kind():
    nodes = [node("a", 6 * GB), node("b", 6 * GB)]
    first = placed([model()], nodes)
    assert again([model()], [*nodes, node("c", 6 * GB, paths=[("a", 0.1), ("b", 0.1)])], first).rings == first.rings


WIFI, CABLE = 20.0, 0.3


def linked(rtt: float, *names: str, room: int = 6 * GB) -> list[NodeReport]:
    return [node(n, room, paths=[(m, rtt) for m in names if m != n]) for n in names]


def test_a_ring_moves_to_nodes_where_a_token_takes_much_less_time():
    slow = linked(WIFI, "a", "b")
    first = placed([model()], slow)
    second = again([model()], [*slow, *linked(CABLE, "c", "d")], first)
    assert [(r.id, r.retiring) for r in second.rings] == [("m@3.5.a", False), ("m@3.4.a", True)]
    assert {s.node for s in second.rings[0].stages} == {"c", "d"}
    assert again([model()], [*slow, *linked(CABLE, "c", "d")], second).rings == second.rings


def test_a_ring_stays_when_another_is_hardly_quicker_or_moves_are_not_wanted():
    slow = linked(8.0, "a", "b")
    first = placed([model()], slow)
    assert again([model()], [*slow, *linked(7.0, "c", "d")], first).rings == first.rings
    assert again([model()], [*slow, *linked(CABLE, "c", "d")], first, unmoved=None).rings == first.rings


def test_a_ring_does_not_move_where_another_would_have_to_go():
    slow = linked(WIFI, "a", "b")
    first = placed([model()], slow)
    full = [*slow, *linked(CABLE, "c", "d", room=8 * GB)]
    both = again([model(), model("k")], full, first)
    assert again([model(), model("k")], full, both).rings == both.rings


def test_a_ring_is_spread_when_that_is_asked_for_later():
    nodes = [node("a", 64 * GB), node("b", 64 * GB)]
    second = again([model()], nodes, placed([model()], nodes), min_stages=2, unmoved=None)
    assert [(len(r.stages), r.retiring) for r in second.rings] == [(2, False), (1, True)]


def test_a_ring_that_has_no_room_beside_the_new_one_goes_first():
    nodes = [node("a", 12 * GB), node("b", 6 * GB)]
    second = again([model()], nodes, placed([model()], nodes, max_sessions=[1]), min_stages=2, max_sessions=[1])
    assert [(len(r.stages), r.retiring) for r in second.rings] == [(2, False)]


def test_when_a_node_dies_the_driver_goes_on_driving():
    nodes = [node("a", 6 * GB), node("b", 6 * GB), node("c", 7 * GB, models=["m"])]
    first = placed([model()], nodes[:2])
    assert first.rings[0].driver == "a"
    ring = again([model()], [nodes[0], nodes[2]], first).rings[0]
    assert [s.node for s in ring.stages] == ["a", "c"]


def test_a_new_model_does_not_push_away_one_that_stands():
    old, new = model("old"), model("new")
    nodes = [node("a", room_for(old, 32768, 8)), node("b", room_for(old, 8192, 1))]
    first = placed([old], nodes)
    second = again([new, old], nodes, first)
    assert second.rings[1] == first.rings[0]
    assert second.rings[0].driver == "b"


@pytest.mark.parametrize(
    "spec", [model(layers=40), dataclasses.replace(model(), cuts=(7,)), model(layer=400 * MB), model(max_context=4096)]
)
def test_a_ring_that_no_longer_suits_is_made_anew(spec):
    nodes = [node("a", 6 * GB), node("b", 16 * GB)]
    first = placed([model()], nodes, min_stages=2)
    assert again([spec], nodes, first, min_stages=2).rings[0].id == "m@3.5.a"


# --- replicas ------------------------------------------------------------------------------------------------------


def test_nodes_left_over_get_replicas():
    placement = placed([model()], [node(n, 64 * GB) for n in "abc"], max_rings=None)
    assert [(r.id, r.driver) for r in placement.rings] == [("m@3.4.a", "a"), ("m@3.4.a-2", "b"), ("m@3.4.a-3", "c")]
    assert len({r.context for r in placement.rings}) == 1


def test_rings_of_a_model_can_be_limited():
    assert len(placed([model()], [node(n, 64 * GB) for n in "abc"], max_rings=2).rings) == 2


def test_a_replica_is_spread_as_much_as_the_first_ring():
    rings = placed([model()], [node(n, 64 * GB) for n in "abcde"], max_rings=None, min_stages=2).rings
    assert [len(r.stages) for r in rings] == [2, 2]


def test_a_replica_has_the_context_of_the_first_ring():
    nodes = [node("a", 64 * GB), node("b", room_for(model(), 16384, 1))]
    assert len(placed([model()], nodes, max_rings=None).rings) == 1
    assert len(placed([model()], nodes, max_rings=None, contexts=[16384]).rings) == 2


def test_a_ring_that_is_much_slower_is_no_replica():
    nodes = [node("a", 64 * GB), *linked(90.0, "b", "c")]
    assert len(placed([model()], nodes, max_rings=None).rings) == 1
    assert len(placed([model()], [nodes[0], *linked(CABLE, "b", "c")], max_rings=None).rings) == 2


def test_a_node_that_joins_gets_a_replica_and_moves_nothing():
    nodes = [node("a", 6 * GB), node("b", 6 * GB)]
    first = placed([model()], nodes, max_rings=None)
    second = again([model()], [*nodes, node("c", 64 * GB)], first, max_rings=None)
    assert first.rings[0] in second.rings
    assert {r.driver: len(r.stages) for r in second.rings} == {"a": 2, "c": 1}
    third = again([model()], [*nodes, node("c", 64 * GB)], second, max_rings=None)
    assert shape(third.rings[0]) == [("c", 0, 32)]  # the better one now counts as the first
    assert set(third.rings) == set(second.rings)


def test_a_replica_makes_room_for_another_model():
    one = room_for(model(), 32768, 8)
    nodes = [node("a", one), node("b", one)]
    first = placed([model("x")], nodes, max_rings=None)
    assert len(first.rings) == 2
    second = again([model("x"), model("y")], nodes, first, max_rings=None)
    assert [(r.model, r.max_sessions) for r in second.rings] == [("x", 8), ("y", 8)]
    assert second.rings[0] == first.rings[0]
    assert set(again([model("x")], nodes, second, max_rings=None).rings[:1]) == {first.rings[0]}


def test_another_model_goes_where_no_replica_has_to_go():
    one = room_for(model(), 32768, 8)
    nodes = [node("a", one), node("b", one), node("c", one - GB)]
    first = placed([model("x")], nodes[:2], max_rings=None)
    second = again([model("x"), model("y")], nodes, first, max_rings=2)
    assert [r.driver for r in second.rings] == ["a", "b", "c"]
    assert second.rings[:2] == first.rings


def test_models_get_replicas_in_turn():
    one = room_for(model(), 32768, 8)
    placement = placed([model("x"), model("y")], [node(n, one) for n in "abcd"], max_rings=None)
    assert [r.model for r in placement.rings] == ["x", "x", "y", "y"]


def test_when_the_first_ring_dies_the_replica_takes_its_place():
    nodes = [node("a", 64 * GB), node("b", 64 * GB)]
    first = placed([model()], nodes, max_rings=None)
    assert again([model()], nodes[1:], first, max_rings=None).rings == first.rings[1:]


def test_where_a_model_is_barred_nothing_of_it_is_placed_or_kept():
    nodes = [node("a", 64 * GB), node("b", 64 * GB)]
    first = placed([model()], nodes, max_rings=None)
    assert again([model()], nodes, first, max_rings=None, barred=[("m", "b")]).rings == first.rings[:1]
    assert again([model()], nodes, first, max_rings=None, barred=[("k", "b")]).rings == first.rings


# --- draining ------------------------------------------------------------------------------------------------------


def drained(nodes: Sequence[NodeReport], *names: str) -> list[NodeReport]:
    return [dataclasses.replace(n, draining=n.info.id in names) for n in nodes]


def test_a_ring_leaves_a_draining_node_and_retires_there():
    nodes = [node("a", 64 * GB), node("b", 64 * GB)]
    second = again([model()], drained(nodes, "a"), first := placed([model()], nodes))
    assert [(r.driver, r.retiring) for r in second.rings] == [("b", False), ("a", True)]
    assert again([model()], drained(nodes, "a"), second).rings == second.rings
    gone = dataclasses.replace(second, rings=second.rings[:1])
    assert again([model()], drained(nodes, "a"), gone).rings == gone.rings
    assert first.rings[0].id == second.rings[1].id


def test_a_replica_on_a_draining_node_retires():
    nodes = [node("a", 64 * GB), node("b", 64 * GB)]
    first = placed([model()], nodes, max_rings=None)
    second = again([model()], drained(nodes, "a"), first, max_rings=None)
    assert [(r.id, r.retiring) for r in second.rings] == [("m@3.4.a-2", False), ("m@3.4.a", True)]


def test_a_ring_stays_on_a_draining_node_while_there_is_no_other_place():
    nodes = [node("a", 64 * GB), node("b", 2 * GB)]
    first = placed([model()], nodes)
    assert again([model()], drained(nodes, "a"), first).rings == first.rings
    assert again([model()], drained(nodes, "a", "b"), first).rings == first.rings


def test_nothing_new_is_placed_on_a_draining_node():
    placement = placed([model()], drained([node("a", 64 * GB), node("b", 2 * GB)], "a"))
    assert not placement.rings
    assert "mini-b" in placement.refused[0].message
    assert "mini-a" not in placement.refused[0].message


def test_models_get_fewer_sessions_before_a_node_keeps_one_that_is_to_leave_it():
    nodes = [node("a", 2 * room_for(model(), 32768, 2)), node("b", 2 * room_for(model(), 32768, 2))]
    first = placed([model("x"), model("y")], nodes)
    assert {r.max_sessions for r in first.rings} == {4}
    second = again([model("x"), model("y")], drained(nodes, "a"), first)
    assert {(r.driver, r.max_sessions) for r in second.rings if not r.retiring} == {("b", 2)}


def test_a_node_that_is_taken_into_use_again_gets_its_ring_back():
    nodes = [node("a", 64 * GB), *linked(CABLE, "b", "c")]
    first = placed([model()], nodes, unmoved=None)
    moving = again([model()], drained(nodes, "a"), first, unmoved=None)
    assert [(r.driver, r.retiring) for r in moving.rings] == [("b", False), ("a", True)]
    back = again([model()], nodes, moving, unmoved=None)
    assert [(r.id, r.retiring) for r in back.rings] == [(first.rings[0].id, False), ("m@3.5.a", True)]


# --- several models, refusals -------------------------------------------------------------------------------------


def test_earlier_models_choose_first_and_take_memory():
    one = room_for(model(), 32768, 8)
    placement = placed([model("x"), model("y")], [node("a", one + GB), node("b", one)])
    assert [(r.id, r.driver) for r in placement.rings] == [("x@3.4.a", "a"), ("y@3.4.a", "b")]


def test_models_get_fewer_sessions_before_one_is_refused():
    placement = placed([model("x"), model("y")], [node("a", 2 * room_for(model(), 32768, 2))])
    assert [(r.model, r.context, r.max_sessions) for r in placement.rings] == [("x", 32768, 2), ("y", 32768, 2)]
    tight = placed([model("x"), model("y")], [node("a", 2 * room_for(model(), 8192, 1))])
    assert [(r.context, r.max_sessions) for r in tight.rings] == [(8192, 1), (8192, 1)]


def test_a_ring_that_stands_shrinks_only_if_another_model_needs_it():
    nodes = [node("a", 2 * room_for(model(), 32768, 2))]
    first = placed([model("x")], nodes)
    assert first.rings[0].max_sessions == 4
    too_big = model("big", layers=200)
    assert again([model("x"), too_big], nodes, first).rings == first.rings
    second = again([model("x"), model("y")], nodes, first)
    assert [r.max_sessions for r in second.rings] == [2, 2]
    assert again([model("x"), model("y")], nodes, second).rings == second.rings
    assert again([model("x")], nodes, second).rings == second.rings[:1]


def test_a_model_named_twice_is_placed_once():
    assert len(placed([model(), model()], [node("a", 64 * GB)]).rings) == 1


def test_a_refusal_names_what_is_needed_and_what_each_node_lacks():
    spec = model(layers=10, layer=GB, ends=GB, kv=MB // 1024)
    (refusal,) = placed([spec], [node("b", 3 * GB), node("a", 5 * GB + GB // 2)]).refused
    assert (refusal.model, refusal.code) == ("m", "no_capacity")
    assert refusal.message == (
        "m needs 12.1 GB: weights 11.0 GB, cache 20.0 MB for 1 of 2048 tokens, working memory 1.1 GB a node. "
        "mini-a has 5.5 GB free (6.6 GB short), mini-b has 3.0 GB free (9.1 GB short); together 8.5 GB (3.6 GB short)."
    )
    assert refusal.hint.startswith("Try a smaller model")
    assert "add a Mac" in refusal.hint


def test_a_refusal_for_want_of_cuts_says_so():
    spec = dataclasses.replace(model(layers=10, layer=GB), cuts=())
    (refusal,) = placed([spec], [node("a", 8 * GB), node("b", 8 * GB)]).refused
    assert "together 16.0 GB, but no cut between layers lets every node hold its part" in refusal.message


def test_a_refusal_names_models_that_could_make_room():
    nodes = [node("a", room_for(model(), 8192, 1))]
    placement = placed([model("x"), model("y")], nodes)
    assert [r.model for r in placement.rings] == ["x"]
    assert placement.refused[0].hint.startswith("Unload x, or: try")


def test_without_nodes_all_is_refused():
    (refusal,) = placed([model()], []).refused
    assert "No node can hold layers now." in refusal.message


# --- whatever the input -------------------------------------------------------------------------------------------


@st.composite
def specs(draw: st.DrawFn, name: str = "m") -> ModelSpec:
    layers = draw(st.integers(1, 7))
    weights = draw(st.one_of(st.just([100]), st.lists(st.integers(1, 300), min_size=layers, max_size=layers)))
    costs = st.builds(KvCost, st.integers(0, 4096), st.integers(0, MB), st.sampled_from([0, 1024]))
    return ModelSpec(
        ModelVersion(name),
        tuple(w * MB for w in (weights * layers)[:layers]),
        draw(st.integers(0, 300)) * MB,
        tuple(draw(st.lists(costs, min_size=layers, max_size=layers))),
        tuple(sorted(draw(st.sets(st.integers(1, layers - 1))))) if layers > 1 else (),
        draw(st.sampled_from([512, 4096, 40000])),
        score_bytes=draw(st.sampled_from([0, 16384])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeReport]:
    names = "abcd"[: draw(st.integers(1, 4))]
    rtt = st.one_of(st.none(), st.floats(0.1, 20))
    nodes = []
    for n in names:
        paths = [(m, r) for m in names if m != n and (r := draw(rtt)) is not None]
        nodes.append(node(n, draw(st.integers(0, 1500)) * MB, paths=paths, models=draw(st.sampled_from([(), ("m",)]))))
    return nodes


def stage_cost(spec: ModelSpec, start: int, end: int, context: int, sessions: int, driver: bool) -> int:
    """Bytes of a stage, computed without the code under test."""
    cache = [kv.fixed + kv.per_token * (min(context, kv.window) if kv.window else context) for kv in spec.kv]
    reserve = STAGE_RESERVE + max(*spec.layer_bytes, spec.score_bytes * context) + max(cache) * sessions
    ends = spec.ends_bytes if driver else 0
    return sum(spec.layer_bytes[start:end]) + sum(cache[start:end]) * sessions + ends + reserve


def every_ring(spec: ModelSpec, nodes: Sequence[NodeReport], context: int, sessions: int) -> Iterator[int]:
    """Yield the number of stages of every ring that fits, by trying all of them."""
    for count in range(1, min(len(nodes), len(spec.cuts) + 1) + 1):
        for cuts in itertools.combinations(spec.cuts, count - 1):
            bounds = list(itertools.pairwise((0, *cuts, spec.layers)))
            costs = [stage_cost(spec, s, e, context, sessions, driver=i == 0) for i, (s, e) in enumerate(bounds)]
            for order in itertools.permutations(nodes, count):
                if all(c <= n.memory.usable for c, n in zip(costs, order, strict=True)):
                    yield count
                    break


def least(spec: ModelSpec) -> int:
    return min((c for c in CONTEXTS if c <= spec.max_context), default=spec.max_context)


def check_rings(
    placement: Placement, specs_: Sequence[ModelSpec], nodes: Sequence[NodeReport], max_rings: int | None = 1
) -> None:
    taken = dict.fromkeys((n.info.id for n in nodes), 0)
    for ring in placement.rings:
        spec = next(s for s in specs_ if s.id == ring.model)
        assert [s.start for s in ring.stages] == [0, *(s.end for s in ring.stages[:-1])]
        assert ring.stages[-1].end == spec.layers
        assert all(s.start < s.end for s in ring.stages)
        assert all(s.start in spec.cuts for s in ring.stages[1:])
        assert len({s.node for s in ring.stages}) == len(ring.stages)
        assert ring.context <= spec.max_context
        for i, s in enumerate(ring.stages):
            cost = stage_cost(spec, s.start, s.end, ring.context, ring.max_sessions, driver=i == 0)
            assert cost == stage_bytes(spec, ring, s)
            taken[s.node] += cost
    for n in nodes:
        assert taken[n.info.id] <= n.memory.usable
    for spec in specs_:
        rings = [r for r in placement.rings if r.model == spec.id and not r.retiring]
        refused = [r for r in placement.refused if r.model == spec.id]
        assert bool(rings) != bool(refused)
        assert len(rings) <= (max_rings or len(nodes))
        holders = [s.node for r in rings for s in r.stages]
        assert len(set(holders)) == len(holders), "two rings of a model share a node"
        assert len({r.context for r in rings}) <= 1
    assert len({r.id for r in placement.rings}) == len(placement.rings)


@settings(max_examples=300, deadline=None)
@given(specs(), clusters(), st.integers(1, 5))
def test_a_ring_is_legal_and_a_refusal_is_true(spec, nodes, min_stages):
    placement = placed([spec], nodes, min_stages=min_stages)
    check_rings(placement, [spec], nodes)
    possible = set(every_ring(spec, nodes, least(spec), 1))
    assert bool(placement.rings) == bool(possible)
    for ring in placement.rings:
        spread = [n for n in possible if n >= min(min_stages, len(nodes), len(spec.cuts) + 1)]
        useful = set(every_ring(spec, nodes, ring.context, ring.max_sessions))
        assert len(ring.stages) in useful
        assert not spread or len(ring.stages) in spread
        if spread and ring.context >= min(8192, spec.max_context):
            assert not [n for n in useful if spread[0] <= n < len(ring.stages) and n in spread]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(specs(), clusters())
def test_the_numbers_of_a_refusal_add_up(spec, nodes):
    for refusal in placed([spec], nodes).refused:
        need = stage_cost(spec, 0, spec.layers, least(spec), 1, driver=True)
        assert f"needs {format_bytes(need)}:" in refusal.message
        for n in nodes:
            free = n.memory.usable
            assert (
                f"{n.info.name} has {format_bytes(free)} free ({format_bytes(max(0, need - free))} short)"
                in refusal.message
            )
        assert re.search(rf"together {format_bytes(sum(n.memory.usable for n in nodes))}\b", refusal.message)


limits = st.sampled_from([None, 1, 2])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.tuples(specs("m"), specs("k"), specs("j")), clusters(), clusters(), st.integers(1, 3), limits, st.randoms())
def test_changes_are_legal_repeatable_and_come_to_rest(models, before, after, min_stages, max_rings, rng):
    rules = {"min_stages": min_stages, "max_rings": max_rings}
    first = placed(models, before, **rules)
    check_rings(first, models, before, max_rings)
    after = drained(after, *rng.choice([(), (), ("a",), ("b", "c")]))
    second = again(models, after, first, **rules)
    check_rings(second, models, after, max_rings)
    shuffled = rng.sample(after, len(after))
    assert again(models, shuffled, first, **rules) == second
    assert placed(models, rng.sample(before, len(before)), **rules) == first
    third = second
    for _ in range(4):  # a model may move to a place that another has just left, so it can take some rounds
        rings = tuple(r for r in third.rings if not r.retiring)  # these have finished by then
        third = again(models, after, dataclasses.replace(second := third, rings=rings), **rules)
    assert third.rings == second.rings


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(specs(), clusters(), st.integers(1, 3), limits)
def test_one_more_node_moves_no_ring_that_falls_short_of_nothing(spec, nodes, min_stages, max_rings):
    rules = {"min_stages": min_stages, "max_rings": max_rings, "unmoved": None}
    first = placed([spec], nodes[1:], **rules)
    second = again([spec], nodes, first, **rules)
    for ring in first.rings:
        useful = ring.context >= min(8192, spec.max_context)
        if useful and len(ring.stages) >= min(min_stages, len(nodes), len(spec.cuts) + 1):
            assert dataclasses.replace(ring, retiring=False) in second.rings


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.tuples(specs("m"), specs("k")), clusters(), st.randoms())
def test_a_replica_never_costs_another_model_its_ring(models, nodes, rng):
    alone = placed(models, nodes)
    many = placed(models, nodes, max_rings=None)
    assert {r.model for r in alone.refused} == {r.model for r in many.refused}
    assert [r for r in many.rings if r.id in {a.id for a in alone.rings}] == list(alone.rings)
    one = again(models, nodes, placed(models[:1], nodes, max_rings=None), max_rings=None)
    assert {r.model for r in one.refused} <= {r.model for r in again(models, nodes, placed(models[:1], nodes)).refused}
