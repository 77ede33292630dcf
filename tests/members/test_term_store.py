"""A node that can't write terms to its disk follows heads, and does not become head until the disk works."""

import errno
from types import SimpleNamespace

import pytest

from node.cluster.agent import Agent
from node.core.limits import MAX_NAME_CHARS
from node.core.nodes import Memory, NodeInfo
from node.core.reports import Heartbeat, NodeReport
from node.members.term_store import RETRY_S, TermStore

INFO = NodeInfo("me", 1, "me", "home", "1", 1, ("10.0.0.1",), 1, 2)


class Disk:
    def __init__(self, term: int = 0) -> None:
        self.is_full = True
        self.term = term
        self.tries = 0

    def write(self, term: int) -> None:
        self.tries += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.term = term


def test_a_term_is_tried_again_but_not_all_the_time():
    disk = Disk()
    store = TermStore(disk.write)
    assert not store.save(3, 0.0)
    assert store.error == "No space left on device"
    assert not store.save(4, 1.0)
    store.retry(RETRY_S - 0.1)
    assert disk.tries == 1
    disk.is_full = False
    store.retry(RETRY_S)
    assert (disk.term, store.error) == (4, "")
    assert store.save(5, RETRY_S)
    store.retry(2 * RETRY_S)
    assert (disk.term, disk.tries) == (5, 3)


@pytest.mark.parametrize("error", [OSError(), OSError("\x1b[2J"), OSError(5, "x" * 10_000)])
def test_any_error_is_told_in_words_that_peers_take(error):
    def write(_: int) -> None:
        raise error

    store = TermStore(write)
    store.save(1, 0.0)
    assert 0 < len(store.error) <= MAX_NAME_CHARS
    assert store.error.isprintable()


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("node.cluster.agent.now", lambda: clock.now)
    return clock


def agent_on(disk: Disk, term: int = 0) -> Agent:
    nothing = SimpleNamespace(
        hint_of=lambda _: None, add=lambda _: None, paths_to_peers=tuple, disconnect=lambda _: None
    )
    return Agent(INFO, term, nothing, lambda: NodeReport(INFO, Memory(100, 100)), disk.write)


def told(agent: Agent) -> tuple[int, str, str]:
    report = agent.heartbeat_for(None).report
    return report.term, report.head, report.disk_error


def peer(term: int, head: str) -> Heartbeat:
    info = NodeInfo("other", 1, "other", "home", "1", 1, (), 1, 2)
    return Heartbeat(NodeReport(info, Memory(1, 1), term, head))


def test_no_term_is_claimed_that_is_not_on_disk(clock):
    disk = Disk(4)
    agent = agent_on(disk, 4)
    for _ in range(20):
        agent.touch()
        clock.now += 0.2
    assert told(agent) == (4, "", "No space left on device")
    assert disk.tries == 1
    disk.is_full = False
    for _ in range(30):
        agent.touch()
        clock.now += 0.2
    assert told(agent) == (disk.term, "me", "")
    assert disk.term == 5


def test_a_head_is_followed_whatever_the_disk_does(clock):
    disk = Disk(4)
    agent = agent_on(disk, 4)
    agent.touch()
    agent.heard(peer(7, "other"))
    assert told(agent) == (7, "other", "No space left on device")
    disk.is_full = False
    clock.now += RETRY_S
    agent.heard(peer(7, "other"))
    assert disk.term == 7
    assert told(agent) == (7, "other", "")


def test_a_head_that_can_t_save_a_higher_term_leaves_it_to_others(clock):
    disk = Disk()
    disk.is_full = False
    agent = agent_on(disk)
    agent.touch()
    clock.now += 2.0
    agent.touch()
    assert told(agent) == (1, "me", "")
    disk.is_full = True
    agent.heard(peer(6, ""))
    assert told(agent) == (1, "", "No space left on device")
    agent.heard(peer(7, "other"))
    assert told(agent)[:2] == (7, "other")
