"""The next session is of the client with the fewest computed tokens, and the first of its sessions that came."""

import random
from collections import Counter

import pytest

from node.core.fair_queue import MAX_COUNTS, FairQueue
from node.core.generation import GenerateRequest
from node.ring.session import Session


def session(client: str = "", name: str = "x", resume: tuple[int, ...] = ()) -> Session:
    return Session(GenerateRequest(name, "m", (1, 2), 10, resume=resume, client=client))


def unbegun(session: Session) -> bool:
    return not session.generated


def waiting_with(*clients: str) -> FairQueue[Session]:
    waiting = FairQueue[Session]()
    for number, client in enumerate(clients):
        waiting.add(session(client, f"{client}{number}"))
    return waiting


def admitted(waiting: FairQueue, tokens: int = 10) -> str:
    """Admit the next session, charge it for `tokens`, and return its id."""
    found = waiting.next(lambda _: True)
    assert found
    waiting.admit(found)
    waiting.bill(found, tokens)
    return found.request.id


def test_one_client_waits_in_order_of_arrival() -> None:
    waiting = waiting_with(*("a" * 5))
    assert [admitted(waiting) for _ in range(5)] == ["a0", "a1", "a2", "a3", "a4"]
    assert not waiting
    assert waiting.next(lambda _: True) is None


def test_clients_take_turns() -> None:
    waiting = waiting_with(*"aaaaabbc")
    assert [admitted(waiting) for _ in range(8)] == ["a0", "b5", "c7", "a1", "b6", "a2", "a3", "a4"]


def test_a_late_client_is_next_although_another_has_a_long_line() -> None:
    waiting = waiting_with(*("a" * 200))
    for _ in range(50):
        admitted(waiting)
    waiting.add(session("b", "late"))
    assert "late" in (admitted(waiting), admitted(waiting))


def test_a_client_with_larger_requests_has_fewer_admitted() -> None:
    waiting = waiting_with(*("a" * 100), *("b" * 100))
    served = Counter[str]()
    for _ in range(40):
        found = waiting.next(lambda _: True)
        assert found
        waiting.admit(found)
        tokens = 300 if found.request.client == "a" else 100
        waiting.bill(found, tokens)
        served[found.request.client] += tokens
    assert abs(served["a"] - served["b"]) <= 300


def test_generated_tokens_count() -> None:
    waiting = waiting_with(*"abab")
    running = session("a")
    assert admitted(waiting) == "a0"
    waiting.bill(running, 1000)
    assert [admitted(waiting) for _ in range(3)] == ["b1", "b3", "a2"]


def test_idle_time_gives_no_credit() -> None:
    waiting = waiting_with(*("a" * 100))
    for _ in range(50):
        admitted(waiting, 1000)
    for number in range(100):
        waiting.add(session("b", f"b{number}"))
    order = [admitted(waiting, 1000)[0] for _ in range(20)]
    assert order.count("a") in (9, 10, 11)


def test_a_client_that_hangs_up_and_asks_again_has_no_advantage() -> None:
    waiting = waiting_with(*"ab")
    assert [admitted(waiting, 1000), admitted(waiting, 10)] == ["a0", "b1"]
    waiting.add(session("a", "again"))
    waiting.remove(next(iter(waiting)))
    for name in ("again", "b"):
        waiting.add(session(name[0], name))
    assert admitted(waiting) == "b"


def test_preempted_sessions_are_first_of_all_or_first_of_their_client() -> None:
    waiting = waiting_with(*"aab")
    lost, gave = session("b", "lost"), session("a", "gave")
    waiting.put_first(gave)
    waiting.put_back(lost)
    assert [admitted(waiting, 100) for _ in range(4)] == ["lost", "gave", "a0", "b2"]


def test_only_sessions_that_fit_are_considered() -> None:
    waiting = waiting_with(*"aab")
    found = waiting.next(lambda each: each.request.id != "a0")
    assert found is not None
    assert found.request.id == "a1"
    assert waiting.next(lambda each: each.request.client == "c") is None


def test_a_newcomer_replaces_the_last_session_of_the_client_with_most() -> None:
    waiting = waiting_with(*"aaaab")
    replaced = waiting.replaceable(session("c"), unbegun)
    assert replaced
    assert replaced.request.id == "a3"
    assert waiting.replaceable(session("a"), unbegun) is None
    assert waiting_with(*"aab").replaceable(session("b"), unbegun) is None, "they would replace each other for ever"
    assert waiting_with(*"abc").replaceable(session("d"), unbegun) is None
    assert waiting_with("a").replaceable(session("b"), unbegun) is None
    assert FairQueue[Session]().replaceable(session("b"), unbegun) is None


def test_a_session_that_has_begun_is_not_replaced() -> None:
    waiting = waiting_with("a")
    for number in range(3):
        waiting.add(session("a", f"resumed{number}", resume=(7,)))
    found = waiting.replaceable(session("b"), unbegun)
    assert found
    assert found.request.id == "a0"
    waiting.remove(found)
    assert waiting.replaceable(session("b"), unbegun) is None


def test_counts_of_idle_clients_are_bounded() -> None:
    waiting = FairQueue[Session]()
    for number in range(3 * MAX_COUNTS):
        waiting.add(session(f"client-{number}"))
        admitted(waiting)
    assert len(waiting._counts) <= MAX_COUNTS + 2
    assert not waiting._lines


@pytest.mark.slow
def test_every_history_is_fair_and_loses_no_session() -> None:
    """While two clients wait all the time, neither is ahead of the other by more than some requests."""
    for seed in range(200):
        seeded = random.Random(seed)
        waiting, inside = FairQueue[Session](), set[Session]()
        came, went = 0, 0
        served = Counter[str]()
        for client in "ab":
            for _ in range(300):
                waiting.add(session(client))
                came += 1
        for _ in range(200):
            match seeded.random():
                case x if x < 0.1:
                    waiting.add(session(seeded.choice("cdef")))
                    came += 1
                case x if x < 0.15 and inside:
                    waiting.put_back(inside.pop())
                    went -= 1
                case x if x < 0.2 and len(waiting):
                    waiting.remove(seeded.choice(list(waiting)))
                    went += 1
                case _:
                    found = waiting.next(lambda _: True)
                    if found is None:
                        continue
                    tokens = seeded.randrange(1, 100)
                    waiting.admit(found)
                    waiting.bill(found, tokens)
                    served[found.request.client] += tokens
                    inside.add(found)
                    went += 1
            assert len(waiting) == len(list(waiting)) == came - went
        assert abs(served["a"] - served["b"]) < 100 * 15, seed  # sessions that were put back are charged twice
