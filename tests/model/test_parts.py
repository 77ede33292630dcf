"""Which part is taken from which peer."""

from hypothesis import given
from hypothesis import strategies as st

from node.core.nodes import Address
from node.model.parts import PART, PATIENCE_S, Part, Parts

A, B, C = (Address(f"10.0.0.{number}:1") for number in (1, 2, 3))
MB = 1 << 20


def parts_of(file, count, have=0):
    return [Part(file, number * PART + have, (number + 1) * PART) for number in range(count)]


def deliver(parts, peer, part, count, now):
    parts.note(peer, count)
    if part.at == part.end:
        parts.end(peer, now)


def test_each_peer_takes_another_part_of_what_it_holds():
    parts = Parts()
    parts.add("x", parts_of("x", 2), [A, B])
    parts.add("y", parts_of("y", 2), [B, C])
    first, second, third = parts.take(A, 0), parts.take(B, 0), parts.take(C, 0)
    assert [(part.file, part.at) for part in (first, second, third)] == [("x", 0), ("x", PART), ("y", 0)]
    deliver(parts, B, second, PART, 1)
    assert parts.take(B, 1).file == "y"
    deliver(parts, A, first, PART, 1)
    assert parts.take(A, 1) is None, "it does not hold y"
    assert parts.is_complete("x")
    assert not parts.is_complete("y")
    parts.remove("x")
    assert [parts.concerns(peer) for peer in (A, B, C)] == [False, True, True]


def test_what_a_dead_peer_did_not_deliver_is_taken_first():
    parts = Parts()
    parts.add("x", parts_of("x", 3), [A, B])
    part = parts.take(A, 0)
    deliver(parts, A, part, 3 * MB, 1)
    parts.end(A, 1)
    assert parts.take(B, 1) is part
    assert part.at == 3 * MB


def test_the_rest_of_a_silent_peers_part_is_taken_over_from_where_it_was():
    parts = Parts()
    parts.add("x", parts_of("x", 2), [A, B])
    slow, quick = parts.take(A, 0), parts.take(B, 0)
    deliver(parts, A, slow, MB, 0.1)
    deliver(parts, B, quick, PART, 0.15)
    assert parts.take(B, 0.15) is None, "it may come yet: 1 of 8 MB in 0.15 s"
    assert parts.take(B, 60) is slow
    assert (slow.at, parts.is_with(A, slow), parts.is_with(B, slow)) == (MB, False, True)
    parts.end(A, 60)
    assert not parts.is_complete("x")
    assert parts.take(A, 60.01) is None, "it does not take back what it lost"


def test_peers_of_the_same_speed_take_nothing_from_each_other():
    parts = Parts()
    parts.add("x", parts_of("x", 2), [A, B])
    one, two = parts.take(A, 0), parts.take(B, 0)
    for second in range(8):
        deliver(parts, A, one, MB, second + 1)
        if second < 7:
            deliver(parts, B, two, MB, second + 1)
    assert parts.take(A, 8) is None
    assert parts.take(A, 8 + PATIENCE_S) is None


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sets(st.sampled_from([A, B, C]), min_size=1)), min_size=1, max_size=4),
    st.data(),
)
def test_every_byte_comes_once_whatever_the_peers_do(files, data):
    """Peers deliver, fall silent and die in any order, except for one that holds all."""
    parts, came, now, alive = Parts(), [], 0.0, {A, B, C}
    for number, (count, holders) in enumerate(files):
        parts.add(str(number), parts_of(str(number), count), holders | {A})
    jobs = {}
    while not all(parts.is_complete(str(number)) for number in range(len(files))):
        now += data.draw(st.sampled_from([0.01, 1.0, 30.0]))
        peer = data.draw(st.sampled_from([peer for peer in (A, B, C) if peer in alive]))
        part = jobs.get(peer)
        if part is None or not parts.is_with(peer, part):
            jobs[peer] = parts.take(peer, now)
        elif peer != A and data.draw(st.booleans()):
            alive.remove(peer)
            parts.end(peer, now)
        else:
            count = min(4 * MB, part.end - part.at)
            came.append((part.file, part.at, count))
            deliver(parts, peer, part, count, now)
    for number, (count, _) in enumerate(files):
        spans = sorted((at, at + size) for file, at, size in came if file == str(number))
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == count * PART
