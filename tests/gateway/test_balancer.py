"""The choice of a ring for a request."""

from hypothesis import given
from hypothesis import strategies as st

from node.core.models import ModelVersion
from node.core.rings import Ring, StageSpec
from node.gateway.balancer import BLOCK, BLOCKS, IMBALANCE, REPORT_S, Balancer


def ring(name: str, *nodes: str) -> Ring:
    stages = tuple(StageSpec(node, at, at + 1) for at, node in enumerate(nodes or (name,)))
    return Ring(name, ModelVersion("m"), stages, 4096, 8)


A, B, WIDE = ring("a"), ring("b"), ring("wide", "c", "d")
LONG = range(5 * BLOCK)


def chosen(balancer, rings=(A, B), tokens=(), loads=None, now=0.0, suspect=()):
    return balancer.choose(rings, tokens, loads or {}, now, suspect).id


def test_the_idlest_takes_it():
    assert chosen(Balancer(), loads={"a": 2, "b": 1}) == "b"
    assert chosen(Balancer(), [A, B, WIDE], loads={"a": 2, "b": 1}) == "wide"


def test_of_equals_the_one_with_fewer_hops_then_the_first():
    assert chosen(Balancer(), [WIDE, B, A]) == "b"


def test_a_burst_is_spread_before_any_driver_reports_it():
    balancer = Balancer()
    assert [chosen(balancer, now=0.1 * k) for k in range(6)] == ["a", "b"] * 3
    assert chosen(balancer, loads={"a": 3, "b": 2}, now=0.5 + 2 * REPORT_S) == "b"


def test_a_prompt_that_begins_alike_goes_where_the_first_went():
    balancer = Balancer()
    assert chosen(balancer, tokens=LONG, loads={"a": 1}) == "b"
    assert chosen(balancer, tokens=[*LONG, 7, 8, 9], now=9, loads={"b": IMBALANCE}) == "b"
    assert chosen(balancer, tokens=[*LONG[:BLOCK], *range(1000, 1000 + BLOCK)], now=20, loads={"b": 1}) == "b"
    assert chosen(balancer, tokens=[1, *LONG], now=30, loads={"b": 1}) == "a"


def test_unless_that_ring_has_much_more_to_do():
    balancer = Balancer()
    assert chosen(balancer, tokens=LONG, loads={"a": 1}) == "b"
    assert chosen(balancer, tokens=LONG, now=9, loads={"b": IMBALANCE + 1}) == "a"
    assert chosen(balancer, tokens=LONG, now=20, loads={"a": 2}) == "a", "the last that had it counts"


def test_the_longest_beginning_counts():
    balancer = Balancer()
    chosen(balancer, [A], tokens=LONG)
    chosen(balancer, [B], tokens=[*LONG, *LONG], now=9)
    fork = [*LONG, *range(7000, 7000 + BLOCK)]
    chosen(balancer, [A], tokens=fork, now=18)
    assert chosen(balancer, tokens=[*LONG, *LONG], now=27, loads={"b": 1}) == "b"
    assert chosen(balancer, tokens=fork, now=36, loads={"a": 1}) == "a"


def test_a_ring_that_is_gone_is_not_preferred():
    balancer = Balancer()
    chosen(balancer, [B], tokens=LONG)
    assert chosen(balancer, [A], tokens=LONG, now=9) == "a"


def test_a_ring_with_a_suspect_is_the_last_resort():
    assert chosen(Balancer(), [A, WIDE], suspect={"a"}) == "wide"
    assert chosen(Balancer(), [A, WIDE], suspect={"a"}, loads={"wide": 50}) == "wide"
    assert chosen(Balancer(), [A], suspect={"a"}) == "a"


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first():
    balancer = Balancer()
    chosen(balancer, [B], tokens=LONG)
    for k in range(BLOCKS // 8):
        chosen(balancer, [A], tokens=[k] * 8 * BLOCK, now=9.0 * k)
    assert chosen(balancer, tokens=LONG, loads={"b": 1}, now=1e9) == "a"


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=3), st.floats(0, 1)), max_size=30))
def test_no_ring_gets_much_more_than_another(asked):
    """Even if all prompts are alike: a ring that leads by more than the imbalance gets no more requests."""
    balancer, counts = Balancer(), {"a": 0, "b": 0, "wide": 0}
    for blocks, now in sorted(asked, key=lambda one: one[1]):
        tokens = [token for block in blocks for token in [block] * BLOCK]
        counts[chosen(balancer, [A, B, WIDE], tokens, now=now)] += 1
    assert max(counts.values()) - min(counts.values()) <= IMBALANCE + 1
