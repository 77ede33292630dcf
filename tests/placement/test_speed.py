"""Unequal Macs: how quick each is, and how many layers it gets for that."""

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core.models import ModelSpec, ModelVersion, Shard
from node.core.reports import NodeReport, Speed
from node.core.rings import Ring, StageSpec
from node.placement.footprint import Footprint, footprint
from node.placement.speed import GB_PER_S, PROMPT_TOKENS, is_slow_wire, pace, token_ms
from node.placement.split import boundaries, split
from tests.placement.test_placement import CABLE, GB, MB, again, linked, model, node, only, placed, shape

GIGA = 1e9


def mac(name: str, chip: str, usable: int = 64 * GB, **facts: object) -> NodeReport:
    found = node(name, usable, **facts)
    return dataclasses.replace(found, info=dataclasses.replace(found.info, chip=f"Apple {chip}"))


def measured(report: NodeReport, rate: float, prompt: float = 1e15, *, spec: ModelSpec | None = None) -> NodeReport:
    """With a measurement of the whole model: bytes per second of a step, and bytes times tokens of a prompt."""
    spec = spec or model()
    shard = Shard(spec.version, 0, spec.layers)
    return dataclasses.replace(report, speeds=(Speed(shard, rate, prompt / sum(spec.layer_bytes)),))


def layers(ring_stages: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    return {name: end - start for name, start, end in ring_stages}


def test_a_wire_is_slow_against_the_time_of_a_stage() -> None:
    ring = [node("a", GB, paths=[("b", 6.0)]), node("b", GB, paths=[("a", 6.0)])]
    assert [is_slow_wire(ring, stage_ms) for stage_ms in (3.0, 5.0, 7.0)] == [True, True, False]


# --- how quick a node is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chip", "rate"),
    [("M1", 68), ("M3 Ultra", 819), ("M4 Pro", 273), ("M9 Pro", 273), ("M9 Tiny", 100), ("M4 Pro Turbo", 100)],
)
def test_a_chip_that_was_not_measured_is_as_quick_as_its_memory(chip, rate):
    assert pace(model(), [mac("a", chip)]) == {"a": pytest.approx(1e3 / (rate * GIGA))}


def test_a_machine_of_another_kind_counts_as_a_slow_mac():
    assert pace(model(), [node("a", GB)]) == {"a": pytest.approx(1e3 / (100 * GIGA))}


def test_a_measurement_counts_for_its_model_and_revision_and_all_of_its_layers_alike():
    spec = model()
    part = Speed(Shard(ModelVersion("m"), 8, 16), 50 * GIGA, 1e12 / sum(spec.layer_bytes[8:16]))
    one = dataclasses.replace(mac("a", "M1"), speeds=(part,))
    expected = 1e3 / (50 * GIGA) + PROMPT_TOKENS * 1e3 / 1e12
    assert pace(spec, [one]) == {"a": pytest.approx(expected)}
    typical = {"a": pytest.approx(1e3 / (68 * GIGA))}
    assert pace(dataclasses.replace(spec, version=ModelVersion("k")), [one]) == typical
    assert pace(dataclasses.replace(spec, version=ModelVersion(spec.id, "2")), [one]) == typical


def test_the_others_are_thought_to_reach_the_same_share_of_their_bandwidth():
    """A mixture of experts reads a tenth of its weights, so all nodes seem ten times as quick."""
    nodes = [measured(mac("a", "M1"), 680 * GIGA), mac("b", "M4 Pro"), mac("c", "M1")]
    found = pace(model(), nodes)
    assert found["c"] == pytest.approx(found["a"])
    assert found["b"] == pytest.approx(found["a"] * 68 / 273)


@pytest.mark.parametrize(("rate", "prompt"), [(0.0, 1e12), (1e300, 1e12), (1e10, 0.0), (1e10, 1e300)])
def test_a_measurement_that_cannot_be_is_ignored(rate, prompt):
    assert pace(model(), [measured(mac("a", "M1"), rate, prompt)]) == {"a": pytest.approx(1e3 / (68 * GIGA))}


def test_a_measurement_of_a_tiny_model_is_ignored():
    """Its steps are mostly software, and any other program on the machine doubles them."""
    spec = model(layers=8, layer=MB)
    assert pace(spec, [measured(mac("a", "M1"), 1 * GIGA, spec=spec)]) == {"a": pytest.approx(1e3 / (68 * GIGA))}


# --- how many layers it gets ----------------------------------------------------------------------------------------


def test_a_quick_mac_does_not_wait_for_a_slow_one():
    ring = only([model(ends=0)], [mac("a", "M4 Max"), mac("b", "M4")], min_stages=2)
    assert layers(shape(ring)) == {"a": 26, "b": 6}


def test_what_is_measured_goes_before_what_the_chip_promises():
    nodes = [measured(mac("a", "M4 Max"), 200 * GIGA), measured(mac("b", "M4"), 100 * GIGA)]
    assert layers(shape(only([model(ends=0)], nodes, min_stages=2))) == {"a": 21, "b": 11}
    throttled = [measured(mac("a", "M4"), 50 * GIGA), measured(mac("b", "M4"), 100 * GIGA)]
    assert layers(shape(only([model(ends=0)], throttled, min_stages=2))) == {"a": 11, "b": 21}


def test_a_difference_that_chips_do_not_explain_is_noise():
    """Three equal processes measured these rates while the others were loading."""
    rates = {"a": 0.658, "b": 0.844, "c": 9.1}
    found = pace(model(), [measured(mac(name, "M4"), rate * GIGA) for name, rate in rates.items()])
    assert found["a"] == found["b"] == found["c"] == pytest.approx(1e3 / (9.1 * GIGA), rel=0.1)


def test_machines_of_unknown_chips_may_differ_by_any_factor():
    """Two of one name may have two cores and 32, or a GPU."""
    nodes = [measured(node("a", 64 * GB), 8 * GIGA), measured(node("b", 64 * GB), 200 * GIGA)]
    found = pace(model(), [*nodes, measured(mac("c", "M4 Max"), 400 * GIGA)])
    assert found["a"] == pytest.approx(found["b"] * 25, rel=0.01)
    assert found["a"] == pytest.approx(found["c"] * 50, rel=0.01)


def test_the_head_is_work_too():
    nodes = [mac("a", "M4"), mac("b", "M4")]
    assert layers(shape(only([model(ends=1600 * MB)], nodes, min_stages=2))) == {"a": 12, "b": 20}


@pytest.mark.parametrize(
    ("seconds", "stages"),
    [
        (0.008, {"a": 14, "b": 18}),
        (0.032, {"a": 8, "b": 24}),
        (0.4, {"a": 1, "b": 31}),  # of a mixture of experts, whose layers are hardly read
        (0.0, {"a": 12, "b": 20}),  # not measured
        (1e-9, {"a": 12, "b": 20}),  # can't be
        (60.0, {"a": 12, "b": 20}),
    ],
)
def test_the_head_is_as_much_work_as_layers_of_its_time(seconds, stages):
    """At 100 GB/s, its 1.6 GB would take 16 ms."""
    spec = model(ends=1600 * MB)
    (speed,) = measured(mac("a", "M4"), 100 * GIGA * MB / 1e6).speeds
    heads = [dataclasses.replace(speed, head_s=each) for each in (seconds, 0.0)]
    nodes = [dataclasses.replace(mac(name, "M4"), speeds=(head,)) for name, head in zip("ab", heads, strict=True)]
    assert layers(shape(only([spec], nodes, min_stages=2))) == stages
    other = dataclasses.replace(heads[0], shard=dataclasses.replace(speed.shard, version=ModelVersion("k")))
    nodes[0] = dataclasses.replace(nodes[0], speeds=(speed, other))
    assert layers(shape(only([spec], nodes, min_stages=2))) == {"a": 12, "b": 20}


def test_memory_goes_before_speed():
    nodes = [mac("a", "M1", 48 * GB), mac("b", "M4 Max", 2 * GB)]
    ring = only([model()], nodes, min_stages=2, contexts=[8192], max_sessions=[1])
    small = Footprint(model(), 8192, 1)
    (stage,) = [stage for stage in ring.stages if stage.node == "b"]
    assert small.stage(stage.start, stage.end, driver=stage.start == 0) <= 2 * GB


def slowest_ms(spec: ModelSpec, ends: Sequence[int], paces: Sequence[float]) -> float:
    """Computed without the code under test."""
    sizes = [sum(spec.layer_bytes[start:end]) for start, end in itertools.pairwise((0, *ends))]
    sizes[0] += spec.head_bytes
    return max(size * ms for size, ms in zip(sizes, paces, strict=True))


@st.composite
def unequal_models(draw: st.DrawFn) -> ModelSpec:
    sizes = draw(st.lists(st.integers(50, 300), min_size=3, max_size=9))
    spec = model(layers=len(sizes), ends=draw(st.integers(0, 600)) * MB, kv=256)
    cuts = draw(st.sets(st.integers(1, len(sizes) - 1), min_size=2))
    return dataclasses.replace(spec, layer_bytes=tuple(size * MB for size in sizes), cuts=tuple(sorted(cuts)))


@settings(max_examples=200, deadline=None)
@given(unequal_models(), st.data())
def test_no_cut_by_hand_is_better(spec, data):
    stages = data.draw(st.integers(1, len(spec.cuts) + 1))
    paces = data.draw(st.lists(st.floats(1e-9, 1e-7), min_size=stages, max_size=stages))
    room = data.draw(st.lists(st.integers(200, 4000).map(lambda mb: mb * MB), min_size=stages, max_size=stages))
    costs = Footprint(spec, 2048, 1)
    possible = [
        slowest_ms(spec, (*cuts, spec.layers), paces)
        for cuts in itertools.combinations(spec.cuts, stages - 1)
        if all(
            costs.stage(start, end, driver=start == 0) <= limit
            for (start, end), limit in zip(itertools.pairwise((0, *cuts, spec.layers)), room, strict=True)
        )
    ]
    ends = split(spec, costs, room, paces)
    assert (ends is None) == (not possible)
    if ends is not None:
        assert set(ends) <= set(boundaries(spec))
        assert slowest_ms(spec, ends, paces) == pytest.approx(min(possible))


@st.composite
def unequal_macs(draw: st.DrawFn, rooms: Sequence[int] = (64 * GB,)) -> list[NodeReport]:
    """Two to four real chips, on cables."""
    names = "abcd"[: draw(st.integers(2, 4))]
    paths = {n: [(m, draw(st.sampled_from([0.3, 0.5, 0.9]))) for m in names if m != n] for n in names}
    chips = st.sampled_from(sorted(GB_PER_S))
    return [mac(n, draw(chips), draw(st.sampled_from(rooms)), paths=paths[n]) for n in names]


def best_by_hand(spec: ModelSpec, nodes: Sequence[NodeReport], ring: Ring) -> float:
    """Milliseconds per token of the best ring of as many nodes: all orders and all cuts that fit are tried."""
    by_name = {n.info.id: n for n in nodes}
    costs, quick = footprint(spec, ring.context, ring.max_sessions), pace(spec, nodes)
    best = float("inf")
    for order in itertools.permutations(by_name, len(ring.stages)):
        for cuts in itertools.combinations(spec.cuts, len(order) - 1):
            bounds = list(itertools.pairwise((0, *cuts, spec.layers)))
            stages = [StageSpec(n, *span) for n, span in zip(order, bounds, strict=True)]
            sizes = [costs.stage(s.start, s.end, driver=s.start == 0) for s in stages]
            if all(size <= by_name[s.node].memory.usable for size, s in zip(sizes, stages, strict=True)):
                best = min(best, token_ms(spec, stages, by_name, quick))
    return best


@settings(max_examples=60, deadline=None)
@given(unequal_macs())
def test_a_ring_of_unequal_macs_is_as_quick_as_the_best_one_by_hand(nodes):
    """What is lost is the choice among orders that count as equally quick."""
    spec = model(layers=16, layer=400 * MB, ends=800 * MB)
    ring = placed([spec], nodes, min_stages=len(nodes), contexts=[8192], max_sessions=[1]).rings[0]
    assert len(ring.stages) == len(nodes)
    found = token_ms(spec, ring.stages, {n.info.id: n for n in nodes}, pace(spec, nodes))
    assert found <= 1.12 * best_by_hand(spec, nodes, ring)


@settings(max_examples=100, deadline=None)
@given(unequal_macs([4 * GB, 6 * GB, 8 * GB]))
def test_the_nodes_are_those_with_which_the_model_is_quickest_in_the_memory_that_they_have(nodes):
    spec = model(layers=32, layer=200 * MB, ends=100 * MB)
    for ring in placed([spec], nodes, min_stages=2, contexts=[8192], max_sessions=[1]).rings[:1]:
        found = token_ms(spec, ring.stages, {n.info.id: n for n in nodes}, pace(spec, nodes))
        assert found <= 1.2 * best_by_hand(spec, nodes, ring)


def test_a_newer_chip_counts_as_the_newest_known_one_of_its_size():
    chips = {"M9 Max": "M4 Max", "M7": "M5", "M6 Pro": "M4 Pro"}
    for newer, known in chips.items():
        assert pace(model(), [mac("a", newer)]) == pace(model(), [mac("a", known)])


# --- which nodes are taken ------------------------------------------------------------------------------------------


def test_a_model_that_fits_on_any_node_goes_to_a_quick_one():
    nodes = [mac("a", "M1", 96 * GB, models=["m"]), mac("b", "M4 Max", 48 * GB), mac("c", "M3 Max", 64 * GB)]
    assert only([model()], nodes).driver == "b"


def test_among_equally_quick_nodes_one_with_the_files_is_taken():
    nodes = [mac("a", "M3", 96 * GB), mac("b", "M2", 48 * GB, models=["m"])]
    assert only([model()], nodes).driver == "b"


def test_a_slow_mac_gets_no_replica():
    nodes = [mac("a", "M4 Max"), mac("b", "M4 Pro"), mac("c", "M1")]
    rings = placed([model()], nodes, max_rings=None).rings
    assert [ring.driver for ring in rings] == ["a", "b"]


# --- a ring that exists ---------------------------------------------------------------------------------------------


ROOM = 48 * GB
"""For two rings beside each other."""


def pair(room: int = ROOM) -> list[NodeReport]:
    return linked(CABLE, "a", "b", room=room)


def test_a_ring_is_cut_anew_when_its_nodes_turn_out_to_be_unequal():
    spec = model(ends=0)
    first = placed([spec], pair(), min_stages=2)
    a, b = pair()
    unequal = [measured(a, 40 * GIGA, spec=spec), measured(b, 80 * GIGA, spec=spec)]
    second = again([spec], unequal, first, min_stages=2)
    assert [(layers(shape(ring)), ring.retiring) for ring in second.rings] == [
        ({"a": 11, "b": 21}, False),
        ({"a": 16, "b": 16}, True),
    ]
    assert again([spec], unequal, second, min_stages=2).rings == second.rings
    assert again([spec], unequal, first, min_stages=2, unmoved=None).rings == first.rings


def test_a_ring_that_is_in_use_keeps_no_other_from_being_moved():
    one, other = model(ends=0), dataclasses.replace(model(ends=0), version=ModelVersion("k"))
    first = placed([one, other], pair(96 * GB), min_stages=2)
    a, b = pair(96 * GB)
    whole = [
        Speed(Shard(ModelVersion(spec.id), 0, spec.layers), 1.0, 1e15 / sum(spec.layer_bytes)) for spec in (one, other)
    ]
    a, b = (
        dataclasses.replace(each, speeds=tuple(dataclasses.replace(speed, bytes_per_s=rate * GIGA) for speed in whole))
        for each, rate in ((a, 40), (b, 80))
    )
    used = first.rings[0]
    second = again([one, other], [a, b], first, min_stages=2, unmoved=frozenset([used.place]))
    assert used in second.rings
    moved = {ring.model: layers(shape(ring)) for ring in second.rings if not ring.retiring}
    assert moved == {"m": {"a": 16, "b": 16}, "k": {"a": 11, "b": 21}}


@settings(max_examples=50, deadline=None)
@given(st.floats(0.9, 1.1), st.floats(0.9, 1.1))
def test_noise_of_measuring_moves_nothing(one, other):
    spec = model(ends=0)
    first = placed([spec], pair(), min_stages=2)
    a, b = pair()
    noisy = [measured(a, 70 * one * GIGA, spec=spec), measured(b, 70 * other * GIGA, spec=spec)]
    assert again([spec], noisy, first, min_stages=2).rings == first.rings


@pytest.mark.parametrize("room", [6 * GB, 24 * GB])
def test_a_ring_is_not_cut_anew_where_its_requests_would_wait_or_have_less_room(room):
    """Beside the old ring there is no room for the new one, or only for one with fewer sessions."""
    spec = model(ends=0)
    first = placed([spec], pair(room), min_stages=2)
    assert len(first.rings[0].stages) == 2
    a, b = pair(room)
    unequal = [measured(a, 40 * GIGA, spec=spec), measured(b, 80 * GIGA, spec=spec)]
    assert again([spec], unequal, first, min_stages=2).rings == first.rings
