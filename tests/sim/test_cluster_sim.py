"""Membership and election of several nodes on a fake clock and a network that loses, delays, reorders and splits.

Replay one run and print its events: python tests/sim/test_cluster_sim.py SEED
"""

import heapq
import itertools
import random
import sys
from collections.abc import Callable

import pytest

from node.core.limits import COUNTER_LIMIT
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport
from node.core.rings import Fence
from node.core.views import NodeState
from node.members.election import MAX_TERM_LEAD, BecameHead, Effect, Election, Follow, PersistTerm, cap_term
from node.members.membership import Membership

HEARTBEAT_S, TICK_S = 0.5, 0.25
CHAOS_S, SETTLE_S, CALM_S = 40.0, 8.0, 4.0
SEEDS = 400


class Network:
    """A heap of future events, and the state of the cables."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.loss = 0.0
        self.slowest_s = 0.2
        self.side: dict[str, int] = {}
        """Nodes on different sides do not hear each other."""
        self.unreachable: set[frozenset[str]] = set()
        """Pairs that do not hear each other, though others hear both."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._order), act))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        self.now = until

    def connected(self, a: str, b: str) -> bool:
        return self.side.get(a, 0) == self.side.get(b, 0) and frozenset((a, b)) not in self.unreachable

    def send(self, a: str, b: str, deliver: Callable[[], None]) -> None:
        if self.connected(a, b) and self.rng.random() >= self.loss:
            self.after(self.rng.uniform(0.0005, self.slowest_s), deliver)


class Machine:
    """A Mac: its disk outlives the process that runs on it."""

    def __init__(self, world: "World", name: str, usable: int) -> None:
        self.world, self.name, self.usable = world, name, usable
        self.term = 0  # on disk
        self.incarnation = 0  # on disk
        self.process: Process | None = None

    def start(self) -> None:
        self.incarnation += 1
        self.process = Process(self)
        self.world.tell(f"{self.name} starts, term {self.term}")

    def stop(self, how: str) -> None:
        if not (process := self.process):
            return
        self.process = None
        self.world.tell(f"{self.name} stops: {how}")
        gone_at = self.world.net.now if how == "ended" else None
        for peer in self.world.machines.values():
            if how in ("reset", "ended"):
                self.world.net.send(self.name, peer.name, lambda p=peer: p.unreachable(self.name, gone_at))
            elif how == "goodbye":
                self.world.net.send(self.name, peer.name, lambda p=peer: p.goodbye(process.info))

    def hear(self, report: NodeReport) -> None:
        if self.process:
            self.process.membership.heard(cap_term(report, self.process.election.term), self.world.net.now)
            self.process.decide()

    def unreachable(self, node: str, gone_at: float | None) -> None:
        if self.process:
            self.process.membership.unreachable(node, self.world.net.now, gone_at)
            self.process.decide()

    def goodbye(self, info: NodeInfo) -> None:
        if self.process:
            self.process.membership.goodbye(info.id, self.world.net.now, info.incarnation)
            self.process.decide()


class Process:
    """One run of a node's process."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.world = machine, machine.world
        self.info = NodeInfo(machine.name, machine.incarnation, machine.name, "home", "1", 1, (), 1, 2)
        self.membership = Membership(self.info)
        self.election = Election(machine.name, machine.term)
        self.fence = Fence()
        rng = self.world.net.rng
        self.every(TICK_S, rng.uniform(0, TICK_S), self.tick)
        self.every(HEARTBEAT_S, rng.uniform(0, HEARTBEAT_S), self.beat)

    def every(self, period: float, first: float, act: Callable[[], None]) -> None:
        def again() -> None:
            if self.machine.process is self:
                act()
                self.world.net.after(period, again)

        self.world.net.after(first, again)

    def report(self) -> NodeReport:
        memory = Memory(self.machine.usable, self.machine.usable)
        return NodeReport(self.info, memory, term=self.election.term, head=self.election.head, fence=self.fence)

    def tick(self) -> None:
        for change in self.membership.tick(self.world.net.now):
            self.world.tell(f"{self.machine.name} sees {change}")
        self.decide()

    def beat(self) -> None:
        report = self.report()
        for peer in self.world.machines.values():
            if peer is not self.machine:
                self.world.net.send(self.machine.name, peer.name, lambda p=peer: p.hear(report))

    def decide(self) -> None:
        self.membership.heard(self.report(), self.world.net.now)
        for effect in self.election.tick(self.world.net.now, self.membership.alive(), self.membership.ended()):
            self.world.tell(f"{self.machine.name} {effect}")
            self.carry_out(effect)
            if self.world.chaos and self.world.net.rng.random() < 0.02:
                self.machine.stop("crash")  # between two effects
            if self.machine.process is not self:
                return

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case PersistTerm(term):
                assert term > self.machine.term, f"{self.machine.name} goes back to term {term}"
                self.machine.term = term
            case BecameHead(term):
                assert (self.machine.name, term) not in self.world.claims, f"{self.machine.name} claims {term} twice"
                self.world.claims.add((self.machine.name, term))
                self.accept(self.machine.name, term)
            case Follow(head, term):
                self.accept(head, term)

    def accept(self, head: str, term: int) -> None:
        assert self.machine.term == term, f"{self.machine.name} acts on term {term} before it is persisted"
        first = self.world.accepted.setdefault((self.machine.name, self.info.incarnation, term), head)
        assert first == head, f"{self.machine.name} accepts both {first} and {head} in term {term}"
        self.world.net.after(self.world.net.rng.uniform(0, 0.5), lambda: self.adopt(term))

    def adopt(self, term: int) -> None:
        """The head's first placement has arrived."""
        if self.election.term == term:
            self.fence = Fence(term, 1)


class World:
    def __init__(self, seed: int, count: int, *, loud: bool = False) -> None:
        self.net = Network(seed)
        self.loud = loud
        self.chaos = False
        self.changed_at = 0.0
        self.claims: set[tuple[str, int]] = set()
        self.accepted: dict[tuple[str, int, int], str] = {}
        names = [f"n{i}" for i in range(count)]
        self.machines = {n: Machine(self, n, self.net.rng.choice([8, 16, 16, 64])) for n in names}

    def tell(self, event: str) -> None:
        self.changed_at = self.net.now
        if self.loud:
            print(f"{self.net.now:7.2f} {event}")  # noqa: T201

    def run(self, seconds: float) -> None:
        self.net.run(self.net.now + seconds)

    def start_all(self) -> None:
        for machine in self.machines.values():
            if not machine.process:
                machine.start()

    def sides(self) -> list[list[Process]]:
        alive = [m.process for m in self.machines.values() if m.process]
        key = lambda p: self.net.side.get(p.machine.name, 0)  # noqa: E731
        return [list(group) for _, group in itertools.groupby(sorted(alive, key=key), key)]

    def check_agreement(self) -> None:
        """Check that all nodes that reach each other have one head among them, and that changes have stopped."""
        self.run(CALM_S)
        calm = self.net.now - self.changed_at
        assert calm >= CALM_S, f"still changing {calm:.1f} s ago"
        for side in self.sides():
            opinions = {(p.election.head, p.election.term) for p in side}
            assert len(opinions) == 1, f"no agreement: {opinions}"
            assert opinions.pop()[0] in {p.machine.name for p in side}
            assert all(p.election.term < 1000 * MAX_TERM_LEAD for p in side)
            for p in side:
                assert {r.info.id for r in p.membership.alive()} == {q.machine.name for q in side}


def chaos_step(world: World) -> None:
    rng, net = world.net.rng, world.net
    machine = rng.choice(list(world.machines.values()))
    match rng.choice(["stop", "start", "start", "split", "break", "heal", "weather", "memory", "poison"]):
        case "stop":
            machine.stop(rng.choice(["silence", "reset", "ended", "goodbye"]))
        case "start" if not machine.process:
            machine.start()
        case "split":
            net.side = {name: rng.randrange(rng.choice([2, 3])) for name in world.machines}
            world.tell(f"split {net.side}")
        case "break":
            net.unreachable.add(frozenset(rng.sample(list(world.machines), 2)))
            world.tell(f"unreachable {net.unreachable}")
        case "heal":
            net.side, net.unreachable = {}, set()
            world.tell("heal")
        case "weather":
            net.loss, net.slowest_s = rng.choice([0.0, 0.05, 0.3]), rng.choice([0.002, 0.2, 1.0])
            world.tell(f"loss {net.loss}, delay up to {net.slowest_s}")
        case "memory":
            machine.usable = rng.choice([8, 16, 64])
        case "poison":
            machine.hear(poison(head=rng.choice(["", "stranger", machine.name, "n0"])))


def poison(head: str = "") -> NodeReport:
    """A stranger's report with the highest numbers that pass the checks."""
    most = COUNTER_LIMIT - 1
    info = NodeInfo("stranger", most, "stranger", "home", "1", 1, (), 1, 2)
    return NodeReport(info, Memory(most, most), term=most, head=head, fence=Fence(most, most))


def simulate(seed: int, *, loud: bool = False) -> None:
    rng = random.Random(f"plan {seed}")
    world = World(seed, rng.choice([2, 3, 3, 4, 5]), loud=loud)
    for machine in world.machines.values():
        if rng.random() < 0.5:
            machine.start()  # at once
        else:
            world.net.after(rng.uniform(0, 5), lambda m=machine: m.process or m.start())
    world.chaos = True
    while world.net.now < CHAOS_S:
        world.run(rng.uniform(0.1, 3))
        chaos_step(world)
    world.chaos = False
    world.net.loss, world.net.slowest_s, world.net.unreachable = 0.0, 0.05, set()
    if rng.random() < 0.7:
        world.net.side = {}
    if rng.random() < 0.7:
        world.start_all()
    world.tell("quiet")
    world.run(SETTLE_S)
    world.check_agreement()


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_any_history_ends_in_agreement(first):
    for seed in range(first, first + 40):
        try:
            simulate(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}\nreplay: python tests/sim/test_cluster_sim.py {seed}")


def started(count: int, *, apart_s: float = 0.0, seed: int = 1) -> World:
    world = World(seed, count)
    for i, machine in enumerate(world.machines.values()):
        machine.usable = 100 - i  # n0 ranks first
        world.net.after(i * apart_s, machine.start)
    world.run(count * apart_s + 6)
    return world


def heads(world: World) -> set[tuple[str, int]]:
    return {(p.election.head, p.election.term) for side in world.sides() for p in side}


def test_a_simultaneous_start_takes_one_term():
    assert heads(started(5)) == {("n0", 1)}


def test_a_late_joiner_of_higher_rank_does_not_take_over():
    world = World(1, 3)
    for name, usable, at in [("n0", 8, 0), ("n1", 16, 10), ("n2", 64, 20)]:
        world.machines[name].usable = usable
        world.net.after(at, world.machines[name].start)
    world.run(30)
    assert heads(world) == {("n0", 1)}


@pytest.mark.parametrize(("how", "within_s"), [("silence", 5.0), ("reset", 3.5), ("ended", 1.5), ("goodbye", 1.5)])
def test_the_best_of_the_rest_replaces_a_head_that_is_gone(how, within_s):
    world = started(4)
    world.machines["n0"].stop(how)
    world.run(within_s)
    assert heads(world) == {("n1", 2)}
    state = NodeState.LEFT if how == "goodbye" else NodeState.FAILED
    for machine in list(world.machines.values())[1:]:
        assert machine.process
        view = machine.process.membership.view(world.net.now)
        assert [p.state for p in view if p.report.info.id == "n0"] == [state]


@pytest.mark.parametrize("down_s", [0.1, 0.4, 1.0])
def test_a_head_that_restarts_leaves_nobody_waiting_until_it_has_settled(down_s):
    world = started(4)
    world.machines["n0"].stop("reset")
    world.run(down_s)
    world.machines["n0"].start()
    world.run(3 * HEARTBEAT_S)
    assert heads(world) == {("n1", 2)}


def test_each_side_of_a_split_has_a_head_and_healing_keeps_the_higher_term():
    world = started(5)
    world.net.side = {"n3": 1, "n4": 1}
    world.run(8)
    assert heads(world) == {("n0", 1), ("n3", 2)}
    world.net.side = {}
    world.run(4)
    assert heads(world) == {("n3", 2)}


def test_two_heads_of_one_term_settle_on_the_better_rank():
    world = World(1, 4)
    world.net.side = {"n2": 1, "n3": 1}
    for i, machine in enumerate(world.machines.values()):
        machine.usable = 100 - i
    world.start_all()
    world.run(6)
    assert heads(world) == {("n0", 1), ("n2", 1)}
    world.net.side = {}
    world.run(4)
    assert len(heads(world)) == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_link_that_never_works_brings_no_quarrel(seed):
    world = World(seed, 3)
    world.net.unreachable = {frozenset(("n0", "n2"))}
    world.start_all()
    world.run(12)
    assert world.net.now - world.changed_at > CALM_S
    (middle,) = {p.election.head for side in world.sides() for p in side if p.machine.name == "n1"}
    assert middle
    assert {head for head, _ in heads(world)} <= {middle, ""}


def test_a_restart_of_all_never_reuses_a_term():
    world = started(3)
    for machine in world.machines.values():
        machine.stop("silence")
    world.run(1)
    world.start_all()
    world.run(6)
    assert heads(world) == {("n0", 2)}


@pytest.mark.parametrize("head", ["", "stranger", "n0", "n1"])
def test_a_term_after_which_none_can_come_is_no_end(head):
    world = started(3)
    for machine in world.machines.values():
        machine.hear(poison(head))
    world.run(8)
    world.check_agreement()
    ((name, term),) = heads(world)
    assert name != "stranger"
    assert term < 4 * MAX_TERM_LEAD


def test_a_stranger_that_goes_on_and_on_moves_terms_by_little():
    world = started(3)
    for _ in range(200):
        for machine in world.machines.values():
            machine.hear(poison("stranger"))
        world.run(0.05)
    world.run(8)
    world.check_agreement()
    assert {term for _, term in heads(world)}.pop() < 2000 * MAX_TERM_LEAD


@pytest.mark.parametrize("ahead", [MAX_TERM_LEAD - 1, MAX_TERM_LEAD, MAX_TERM_LEAD + 1, 8 * MAX_TERM_LEAD + 7])
def test_nodes_that_were_apart_for_any_number_of_elections_agree_on_the_later_head(ahead):
    world = started(5)
    world.net.side = {"n3": 1, "n4": 1}
    world.run(8)
    for name in ("n3", "n4"):
        world.machines[name].term += ahead
        world.machines[name].stop("silence")
        world.machines[name].start()
    world.run(8)
    assert heads(world) == {("n0", 1), ("n3", ahead + 3)}
    world.net.side = {}
    world.run(10)
    world.check_agreement()
    assert heads(world) == {("n3", ahead + 3)}


if __name__ == "__main__":
    simulate(int(sys.argv[1]), loud=True)
