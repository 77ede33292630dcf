"""Whether one stream is faster on two nodes than on one: Macs of all kinds, against steps that are played through."""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from node.core.models import ModelSpec, Shard
from node.core.nodes import Memory
from node.core.reports import NodeReport, Path, StageReport, StageState
from node.core.rings import Fence, Placement
from node.core.row_family import RowFamily
from node.placement.place import Rules, place
from node.placement.speed import GB_PER_S, pace
from node.placement.spread import MIN_GAIN, Spread, Stream, best_single, best_spread
from tests.placement.test_placement import GB, MB, model
from tests.placement.test_speed import mac

M3_MAX = {1: 1.0, 2: 1.05, 3: 1.15, 4: 1.3, 5: 1.5}
M4_PRO = {1: 1.0, 2: 1.15, 3: 1.25, 4: 1.45, 5: 1.6}
LINEAR = {count: float(count) for count in range(1, 6)}
"""M1 and M2: a row more takes as long as the first one."""
EXPERTS = {1: 1.0, 2: 1.59, 3: 1.85, 5: 2.44}
"""Each row reads experts of its own."""
COSTS = {"M1": LINEAR, "M2 Pro": LINEAR, "M3 Max": M3_MAX, "M4": M4_PRO, "M4 Pro": M4_PRO, "M3 Ultra": M3_MAX}
CABLE, ETHERNET, RADIO = 0.3, 0.8, 6.0
"""Milliseconds of a round trip, software included."""
PROSE, CODE, DRAFT, EDITS = (1 - 1 / tau for tau in (1.15, 1.75, 4, 9))
"""Share of tokens that is foretold, by the tokens of a round: the table of the formula's paper."""


def serving(
    name: str, chip: str, costs: Mapping[int, float], paths: Mapping[str, float], spec: ModelSpec, *, from_two: bool
) -> NodeReport:
    """A Mac that serves the whole model; with frames of one token that have other bits, or the same."""
    counts = tuple(costs.items())
    families = (RowFamily(), RowFamily(counts[1:])) if from_two else (RowFamily(counts),)
    stage = StageReport(f"of {name}", Shard(spec.version, 0, spec.layers), StageState.READY, families=families)
    linked = tuple(Path(to, "", rtt) for to, rtt in paths.items())
    return dataclasses.replace(mac(name, chip), stages=(stage,), paths=linked)


def pair(
    chips: Sequence[str], rtt: float, spec: ModelSpec, costs: Mapping[int, float] | None = None
) -> list[NodeReport]:
    a, b = chips
    return [
        serving(name, chip, costs or COSTS[chip], {other: rtt}, spec, from_two=False)
        for name, other, chip in (("a", "b", a), ("b", "a", b))
    ]


def played(step_ms: float, stages: Sequence[float], wire_ms: float, right: float, costs: Mapping[int, float]) -> float:
    """Milliseconds a token, with the best number of tokens a frame, of 4,000 frames. `stages`: the share of the work of each."""
    fastest = float("inf")
    for tokens, cost in costs.items():
        rng, time, made = random.Random(tokens), 0.0, 0
        slowest = max(stages) * step_ms * cost
        for _ in range(4000):
            is_whole = True
            for _ in range(tokens):
                made += 1
                if rng.random() >= right:
                    is_whole = False
                    break
            # A frame that is right to its end is followed by one that began a stage later; another one has to go round again.
            whole_round = len(stages) * slowest + wire_ms
            time += whole_round / len(stages) if is_whole else whole_round
        fastest = min(fastest, time / made)
    return fastest


def chosen_by(spec: ModelSpec, nodes: Sequence[NodeReport], stream: Stream) -> Spread:
    found = best_spread(spec, nodes, pace(spec, nodes), stream)
    assert found
    return found


def usable(costs: Mapping[int, float]) -> Mapping[int, float]:
    """Without frames of several tokens where a second one is dear."""
    return costs if costs[2] < 1.5 else {1: 1.0}


@pytest.mark.parametrize("chip", COSTS)
@pytest.mark.parametrize("right", [PROSE, CODE, DRAFT, EDITS])
@pytest.mark.parametrize("rtt", [CABLE, ETHERNET, RADIO])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_two_equal_macs_are_chosen_where_a_stream_that_is_played_through_is_faster(chip, right, rtt, is_sparse):
    spec = model(layers=32, layer=140 * MB, ends=MB)
    costs = EXPERTS if is_sparse else COSTS[chip]
    step_ms = 1e3 * sum(spec.layer_bytes) / GB_PER_S[chip] / 1e9 / (8 if is_sparse else 1)
    alone = played(step_ms, [1.0], 0.0, right, usable(costs))
    together = played(step_ms, [0.5, 0.5], rtt, right, usable(costs))
    nodes = pair((chip, chip), rtt, spec, costs)
    found = chosen_by(spec, nodes, Stream("a", alone, right))
    assert found.nodes == ("a", "b")
    # Where a frame of several tokens has a whole one behind it, the wire counts half: that is not in the formula's favour.
    assert found.gain == pytest.approx(alone / together, rel=0.06)


@pytest.mark.parametrize(
    ("chip", "right", "rtt", "is_sparse", "chosen"),
    [
        ("M4", PROSE, CABLE, False, False),  # 1.07
        ("M4 Pro", CODE, CABLE, False, False),  # frames of three tokens give one node 1.29, two 1.37 less the wire
        ("M4 Pro", CODE, CABLE, True, True),  # experts: one node has steps of one token only
        ("M2 Pro", CODE, CABLE, False, True),
        ("M1", CODE, RADIO, False, True),  # 66 ms a token: the wire hardly counts
        ("M2 Pro", CODE, RADIO, False, False),
        ("M4", DRAFT, CABLE, False, True),
        ("M3 Max", EDITS, CABLE, False, True),
        ("M3 Max", EDITS, RADIO, False, False),
        ("M3 Ultra", DRAFT, ETHERNET, False, False),
    ],
)
def test_the_choices_that_one_would_make_by_hand(chip, right, rtt, is_sparse, chosen):
    spec = model(layers=32, layer=140 * MB, ends=MB)
    costs = EXPERTS if is_sparse else COSTS[chip]
    step_ms = 1e3 * sum(spec.layer_bytes) / GB_PER_S[chip] / 1e9 / (8 if is_sparse else 1)
    nodes = pair((chip, chip), rtt, spec, costs)
    alone = played(step_ms, [1.0], 0.0, right, usable(costs))
    found = chosen_by(spec, nodes, Stream("a", alone, right))
    assert (found.gain >= MIN_GAIN) is chosen


def test_a_slow_mac_is_no_help_to_a_fast_one():
    spec = model(layers=32, layer=140 * MB, ends=MB)
    nodes = pair(("M4 Pro", "M1"), CABLE, spec, LINEAR)
    found = chosen_by(spec, nodes, Stream("b", 66.0, CODE))  # the stream is on the slow one
    assert found.gain < MIN_GAIN
    single = best_single(spec, nodes, pace(spec, nodes), Stream("b", 66.0, CODE))
    assert single
    assert single.step_ms == pytest.approx(66.0 * 68 / 273)


def test_of_four_macs_the_two_on_a_cable_are_chosen():
    spec = model(layers=32, layer=140 * MB, ends=MB)
    names = "abcd"
    rtts = {frozenset(two): RADIO for two in itertools.combinations(names, 2)} | {frozenset("bd"): CABLE}
    nodes = [
        serving(n, "M2 Pro", LINEAR, {m: rtts[frozenset((n, m))] for m in names if m != n}, spec, from_two=False)
        for n in names
    ]
    found = chosen_by(spec, nodes, Stream("b", 22.0, CODE))
    assert found.nodes == ("b", "d")


def test_only_what_was_measured_counts():
    spec = model(layers=32, layer=140 * MB, ends=MB)
    nodes = pair(("M2 Pro", "M2 Pro"), CABLE, spec)
    paces, stream = pace(spec, nodes), Stream("a", 22.0, DRAFT)
    assert best_spread(spec, nodes, paces, stream)
    unlinked = [dataclasses.replace(node, paths=()) for node in nodes]
    assert best_spread(spec, unlinked, paces, stream) is None
    a, b = nodes
    for other in (
        dataclasses.replace(b, stages=()),
        dataclasses.replace(b, draining=True),
        dataclasses.replace(b, stages=(dataclasses.replace(b.stages[0], state=StageState.LOADING),)),
    ):
        assert best_spread(spec, [a, other], paces, stream) is None
        assert best_spread(spec, [other, a], paces, Stream("b", 22.0, DRAFT)) is None
    apart = [dataclasses.replace(n, paths=(Path("b" if n is a else "a", "", float("inf")),)) for n in nodes]
    assert best_spread(spec, apart, paces, stream) is None


# --- placing it -----------------------------------------------------------------------------------------------------


SPREAD = Spread("m", ("a", "b"), 1.4)


def plan(
    nodes: Sequence[NodeReport],
    current: Placement | None,
    spreads: Sequence[Spread] = (),
    idle: Sequence[str] = (),
    specs: Sequence[ModelSpec] = (),
) -> Placement:
    rules = Rules(contexts=(8192,), max_sessions=(2,), spreads=spreads, idle=idle)
    epoch = current.fence.epoch + 1 if current else 1
    return place(specs or [SPEC], nodes, rules, fence=Fence(1, epoch), head="a", current=current)


SPEC = model(layers=8, layer=100 * MB, ends=MB)


def kept(placement: Placement) -> Placement:
    """What is left once the retiring rings have ended."""
    return dataclasses.replace(placement, rings=tuple(ring for ring in placement.rings if not ring.retiring))


def shapes(placement: Placement) -> list[tuple[str, bool]]:
    return [("".join(ring.nodes), ring.retiring) for ring in placement.rings]


def two(usable_bytes: int) -> list[NodeReport]:
    found = pair(("M2 Pro", "M2 Pro"), CABLE, SPEC)
    return [dataclasses.replace(node, memory=Memory(usable_bytes, usable_bytes)) for node in found]


def test_with_room_the_ring_of_two_is_placed_beside_and_back():
    nodes = two(16 * GB)
    replicas = plan(nodes, None)
    assert shapes(replicas) == [("a", False), ("b", False)]
    together = plan(nodes, replicas, [SPREAD])
    assert shapes(together) == [("ab", False), ("a", True), ("b", True)]
    ring = together.rings[0]
    assert (ring.gain, ring.context) == (1.4, replicas.rings[0].context)
    again = plan(nodes, kept(together), [SPREAD])
    assert again.rings == kept(together).rings
    back = plan(nodes, kept(together), [Spread("m")])
    assert shapes(back) == [("a", False), ("ab", True)]
    assert not back.rings[0].gain
    assert shapes(plan(nodes, kept(back), [])) == [("a", False), ("b", False)]


def test_without_room_the_rings_are_exchanged_only_while_there_is_no_request():
    nodes = two(2 * GB)
    replicas = plan(nodes, None)
    assert plan(nodes, replicas, [SPREAD]).rings == replicas.rings
    together = plan(nodes, replicas, [SPREAD], idle=["m"])
    assert shapes(together)[0] == ("ab", False)
    assert plan(nodes, kept(together), [Spread("m")]).rings == kept(together).rings
    back = plan(nodes, kept(together), [Spread("m")], idle=["m"])
    assert len(shapes(back)[0][0]) == 1


def test_other_models_keep_their_rings_and_replicas():
    other = model("k", layers=8, layer=100 * MB, ends=MB)
    nodes = two(2 * GB)
    both = plan(nodes, None, specs=[SPEC, other])
    after = plan(nodes, both, [SPREAD], idle=["m"], specs=[SPEC, other])
    assert [ring for ring in after.rings if ring.model == "k"] == [ring for ring in both.rings if ring.model == "k"]


def test_a_lone_node_serves_whatever_was_chosen():
    (a, _) = nodes = two(16 * GB)
    together = kept(plan(nodes, plan(nodes, None), [SPREAD]))
    assert shapes(plan([a], together, [SPREAD])) == [("a", False)]
    drained = plan([a, dataclasses.replace(nodes[1], draining=True)], together, [SPREAD])
    assert shapes(drained)[0] == ("a", False)
