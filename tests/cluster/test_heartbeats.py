"""Which nodes are called, where and when: hints, adverts, --peer, heartbeats, and lost connections."""

import asyncio
import contextlib
import logging
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.cluster import exchange, seeking
from node.cluster import heartbeats as module
from node.cluster.agent import Agent
from node.cluster.heartbeats import Heartbeats
from node.core.clock import now
from node.core.errors import PeerTimeout, PeerUnavailable, SecretMismatch
from node.core.limits import MAX_ADDRESSES, MAX_NODES
from node.core.nodes import Address, Caller, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.core.signal import Signal
from node.core.views import NodeState
from node.host.interfaces import Interface
from node.members.address_book import AddressBook
from node.members.happy_eyeballs import happy_eyeballs
from node.rpc.guard import host_of

ETHERNET = Interface("en0", "ethernet", ("192.168.1.2",))
LOOPBACK = Interface("lo", "loopback", ("127.0.0.1",))
CABLES = tuple(Interface(name, "thunderbolt", (f"fe80::2%{name}",)) for name in ("en5", "en6"))
MIXED = ("192.168.1.5", "8.8.8.8", "127.0.0.1", "100.64.0.9", "2a02::5", "fd00::5", "printer.local")


class Client:
    """Records calls; only peers in `answers` answer."""

    def __init__(self, answers=()):
        self.answers = answers
        self.called = []
        self.dropped = []
        self.withdrawn = []
        self.refusing = False
        self.failure = PeerUnavailable("nobody there")

    async def exchange(self, peer, heartbeat, timeout_s):
        return await self.call(peer, Heartbeat(report("peer")))

    async def probe(self, peer, timeout_s):
        return await self.call(peer, 1.0)

    async def bandwidth(self, peer, timeout_s):
        return 1e8

    async def call(self, peer, answer):
        self.called.append(peer.target)
        await asyncio.sleep(0)
        if peer.target in self.answers:
            return answer
        raise self.failure

    async def disconnected(self, peer):
        await asyncio.Event().wait()

    async def refuses(self, peer):
        return self.refusing

    def drop(self, peer):
        self.dropped.append(peer.target)

    def drop_control(self, peer):
        self.withdrawn.append(peer.target)


def report(node):
    return NodeReport(NodeInfo(node, 1, node, "home", "0.1.0", 1, ("192.168.1.5",), 7001, 7002), Memory(1, 1))


def book(client=None, *, interfaces=(ETHERNET,), anywhere=False):
    return AddressBook("me", client or Client(), interfaces, anywhere=anywhere)


def agent(*, state_of=lambda _: NodeState.ALIVE, **more):
    """In place of an Agent; by default all nodes are alive, and due after HEARTBEAT_S or news."""
    news, told = Signal(), {}

    def heartbeat_for(node):
        told[node] = news.count, now()
        return Heartbeat(report("me"))

    usual = {
        "info": report("me").info,
        "news": news,
        "heartbeat_for": heartbeat_for,
        "states": SimpleNamespace(digest_of=lambda _: 0, lacks_news=lambda node: told[node][0] != news.count),
        "membership": SimpleNamespace(state_of=state_of, silent_s=lambda node, at: at - told[node][1]),
        "heard": lambda _: None,
        "unreachable": lambda _, gone_at=None: None,
        "alive": lambda: (report("me"),),
    }
    return SimpleNamespace(**(usual | more))


@contextlib.asynccontextmanager
async def running(known, *peers, own=None):
    own = own or agent()
    own.book = known
    task = asyncio.create_task(Heartbeats(own, known._client).run(peers))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(ask):
    async with asyncio.timeout(15):
        while True:
            if found := ask():
                return found
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("anywhere", "interface", "kept"),
    [
        (False, ETHERNET, ("192.168.1.5", "100.64.0.9", "fd00::5")),
        (False, LOOPBACK, ("192.168.1.5", "127.0.0.1", "100.64.0.9", "fd00::5")),
        (True, ETHERNET, ("192.168.1.5", "8.8.8.8", "100.64.0.9", "2a02::5", "fd00::5")),
    ],
)
def test_addresses_that_may_be_called(anywhere, interface, kept):
    """Without a secret, only addresses of one's own network; never names, which a peer could make lead anywhere."""
    known = book(interfaces=(interface,), anywhere=anywhere)
    known.add(PeerHint("peer", MIXED, 7001))
    assert known.hint_of("peer").addresses == kept


async def test_link_local_addresses_are_called_over_each_cable_of_this_machine():
    """Their zone is this machine's, whatever the hint says."""
    hint = PeerHint("peer", ("192.168.1.5", "fe80::9%en17"), 7001)
    known = book(interfaces=(ETHERNET, *CABLES))
    assert not known.knows(hint)
    known.add(hint)
    assert known.hint_of("peer").addresses == ("192.168.1.5", "fe80::9%en5", "fe80::9%en6")
    assert known.knows(hint)
    assert known.knows(PeerHint("peer", ("fe80::9",), 7001))
    assert known.address_of("peer").target == "192.168.1.5:7001"
    assert known.is_from("peer", Caller("fe80::9%en6"))
    assert not known.is_from("peer", Caller("fe80::9%en7"))


async def test_a_cable_that_is_plugged_in_is_used_with_the_next_heartbeat():
    hint = PeerHint("peer", ("192.168.1.5", "fe80::9"), 7001)
    known = book()
    known.add(hint)
    assert known.hint_of("peer").addresses == ("192.168.1.5",)
    assert known.knows(hint)
    known.interfaces = (ETHERNET, *CABLES)
    assert not known.knows(hint)
    known.add(hint)
    assert known.hint_of("peer").addresses == ("192.168.1.5", "fe80::9%en5", "fe80::9%en6")


async def test_a_cable_is_forgotten_over_an_interface_that_has_another_name_now():
    hint = PeerHint("peer", ("192.168.1.5", "fe80::9"), 7001)
    client = Client()
    known = book(client, interfaces=(ETHERNET, CABLES[0]))
    known.add(hint)
    known.paths.observe("peer", "fe80::9%en5", 0.1, now(), interface="en5", kind="thunderbolt")
    assert known.address_of("peer").target == "[fe80::9%en5]:7001"
    known.interfaces = (ETHERNET, CABLES[1])
    known.add(hint)
    assert known.hint_of("peer").addresses == ("192.168.1.5", "fe80::9%en6")
    assert known.paths_to_peers() == ()
    assert client.withdrawn == ["[fe80::9%en5]:7001"]


async def test_a_cable_that_moves_to_another_port_is_used_there_without_news_of_the_peer():
    known, me = book(interfaces=(ETHERNET, CABLES[0])), report("me")
    own = Agent(me.info, 0, known, lambda: me, lambda _: None)
    peer = replace(report("peer"), info=replace(report("peer").info, addresses=("192.168.1.5", "fe80::9")))
    own.exchange(Heartbeat(peer), Caller("192.168.1.5"))
    assert known.hint_of("peer").addresses == ("192.168.1.5", "fe80::9%en5")
    own.readdress(me.info.addresses, (ETHERNET, CABLES[1]))
    assert known.hint_of("peer").addresses == ("192.168.1.5", "fe80::9%en6")


async def test_a_peer_given_with_its_zone_is_called_there(monkeypatch):
    """Also over an interface whose link-local addresses are not advertised."""
    zone = socket.if_indextoname(1)
    client = Client([f"[fe80::9%{zone}]:7001"])
    known = book(client)
    async with running(known, (f"fe80::9%{zone}", 7001)):
        await until(lambda: known.hint_of("peer"))
        assert known.hint_of("peer").addresses == (f"fe80::9%{zone}", "192.168.1.5")
        await until(lambda: known.address_of("peer").target == f"[fe80::9%{zone}]:7001" and known.paths_to_peers())


async def test_an_advert_does_not_take_away_a_way_that_works():
    known = book(Client(["192.168.1.5:7001"]))
    known.add_advert(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known):
        await until(known.paths_to_peers)
    known.add_advert(PeerHint("peer", ("192.168.1.66",), 6666))
    assert known.address_of("peer") == Address("192.168.1.5:7001", "peer")
    known.add_advert(PeerHint("peer", ("192.168.1.66",), 7001))
    assert known.hint_of("peer").addresses == ("192.168.1.5", "192.168.1.66")
    assert known.address_of("peer") == Address("192.168.1.5:7001", "peer")


async def test_a_node_that_moved_is_called_there_once_it_has_told_so():
    """Without mDNS, only the node itself can say where it is."""
    client = Client(["192.168.1.5:7001"])
    known, own = book(client), agent()
    known.add(PeerHint("peer", ("192.168.1.5",), 7001))
    moved = PeerHint("peer", ("192.168.1.6", "8.8.8.8"), 7001)
    async with running(known, own=own):
        await until(known.paths_to_peers)
        assert not known.knows(moved)
        known.add(moved)
        assert known.knows(moved)
        assert known.hint_of("peer").addresses == ("192.168.1.5", "192.168.1.6")
        client.answers = ["192.168.1.6:7001"]
        own.news.notify()
        await until(lambda: "192.168.1.6:7001" in client.called)


def test_of_many_addresses_that_a_node_tells_so_many_are_called():
    known = book()
    addresses = tuple(f"192.168.{n // 250}.{n % 250 + 1}" for n in range(1024))
    known.add(PeerHint("peer", addresses, 7001))
    assert known.hint_of("peer").addresses == addresses[:MAX_ADDRESSES]


def test_of_a_node_that_started_anew_at_another_port_no_connection_is_left():
    client = Client()
    known = book(client)
    known.add(PeerHint("peer", ("192.168.1.5", "192.168.1.6"), 7001))
    known.add(PeerHint("peer", ("192.168.1.5",), 7005))
    assert client.dropped == ["192.168.1.5:7001", "192.168.1.6:7001"]


@pytest.mark.parametrize(
    ("answered", "refusing", "gone"), [(True, True, True), (True, False, False), (False, True, False)]
)
async def test_a_node_is_gone_when_its_port_is_closed_where_it_once_answered(answered, refusing, gone):
    """If it never answered there, another machine may have the address."""
    told = asyncio.Queue()
    own = agent(unreachable=lambda _, gone_at=None: told.put_nowait(gone_at))
    client = Client(["192.168.1.5:7001"] if answered else [])
    known = book(client)
    known.add(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known, own=own):
        await until(known.paths_to_peers if answered else lambda: client.called)
        client.answers, client.refusing = [], refusing
        own.news.notify()
        gone_at = await asyncio.wait_for(told.get(), 60)
    assert (gone_at is not None) is gone


async def test_an_advert_moves_a_node_that_does_not_answer():
    known = book()
    known.add_advert(PeerHint("peer", ("192.168.1.5",), 7001))
    known.add_advert(PeerHint("peer", ("192.168.1.6",), 7005))
    assert known.address_of("peer") == Address("192.168.1.6:7005", "peer")


async def test_invented_nodes_make_room_for_others_and_not_for_those_that_answer():
    known = book(Client(["192.168.1.5:7001"]))
    known.add_advert(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known):
        await until(known.paths_to_peers)
    for number in range(2 * MAX_NODES):
        known.add_advert(PeerHint(f"x{number}", ("192.168.1.66",), 7001))
    kept = [node for node in ("peer", *(f"x{number}" for number in range(2 * MAX_NODES))) if known.hint_of(node)]
    assert len(kept) == MAX_NODES
    assert kept[0] == "peer"
    assert kept[-1] == f"x{2 * MAX_NODES - 1}"


async def test_invented_nodes_are_tried_one_after_the_other(monkeypatch):
    """A limited number at once; nodes that were heard before do not wait for them."""
    monkeypatch.setattr(module, "UNHEARD_AGAIN_S", 1000.0)
    client = Client()
    own = agent(state_of=lambda node: NodeState.ALIVE if node == "peer" else None)
    known = book(client)
    for number in range(100):
        known.add_advert(PeerHint(f"x{number}", (f"192.168.2.{number}",), 7001))
    async with running(known, own=own):
        await until(lambda: len(set(client.called)) == module.UNHEARD_AT_ONCE)
        known.add(PeerHint("peer", ("192.168.1.5",), 7001))
        await until(lambda: client.called.count("192.168.1.5:7001") > 3)
        assert len(set(client.called)) == module.UNHEARD_AT_ONCE + 1
    assert client.dropped, "many connections to nowhere are not kept"
    assert "192.168.1.5:7001" not in client.dropped


@pytest.mark.parametrize(("answer", "again_s"), [(True, 1000.0), (False, 0.01)])
async def test_nodes_that_answer_do_not_count_and_others_wait_for_the_next_interval(monkeypatch, answer, again_s):
    monkeypatch.setattr(module, "UNHEARD_AGAIN_S", again_s)
    client = Client()
    called = lambda node: f"192.168.2.{node[1:]}:7001" in client.called  # noqa: E731
    own = agent(state_of=lambda node: NodeState.ALIVE if answer and called(node) else None)
    known = book(client)
    for number in range(3 * module.UNHEARD_AT_ONCE):
        known.add_advert(PeerHint(f"x{number}", (f"192.168.2.{number}",), 7001))
    async with running(known, own=own):
        await until(lambda: len(set(client.called)) == 3 * module.UNHEARD_AT_ONCE)


async def test_a_node_that_comes_back_by_its_own_call_is_called_over_a_new_connection():
    """Where nobody was, gRPC does not try for a while, which would look like another loss."""
    states = {"peer": NodeState.FAILED}
    own = agent(state_of=states.get)
    client = Client()
    known = book(client)
    known.add(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known, own=own):
        await until(lambda: client.called)
        assert not client.withdrawn
        states["peer"] = NodeState.ALIVE
        own.news.notify()
        await until(lambda: client.withdrawn == ["192.168.1.5:7001"])
        called = len(client.called)
        await until(lambda: len(client.called) > called)
        assert len(client.withdrawn) == 1


async def test_a_node_that_takes_long_to_connect_to_is_not_hung_up_on():
    client = Client()
    own = agent(state_of=lambda _: None)
    known = book(client)
    known.add(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known, own=own):
        await until(lambda: len(client.called) > 2)
    assert not client.dropped


async def test_a_connection_that_cannot_be_watched_ends_nothing(caplog):
    class Unreachable(Client):
        async def disconnected(self, peer):
            raise PeerUnavailable("'peer' is not a node's id.")

    client = Unreachable(["192.168.1.5:7001"])
    known = book(client)
    known.add(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known) as task:
        await until(lambda: "could not be watched" in caplog.text)
        known.add(PeerHint("other", ("192.168.1.6",), 7001))
        await until(lambda: "192.168.1.6:7001" in client.called)
        assert not task.done()


async def test_of_an_address_that_a_node_has_no_longer_no_connection_for_heartbeats_is_left():
    """Other connections stay: a ring may still use them."""
    client = Client()
    known = book(client)
    known.add(PeerHint("peer", ("192.168.1.5", "192.168.1.6"), 7001))
    known.add(PeerHint("peer", ("192.168.1.6", "192.168.1.7"), 7001))
    assert client.withdrawn == ["192.168.1.5:7001"]
    assert not client.dropped


def contact_tasks():
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith(" peer"))


async def test_a_node_that_is_hinted_at_again_is_kept_in_touch_with_once():
    client = Client(["192.168.1.5:7001"])
    known, own = book(client), agent()
    hint = PeerHint("peer", ("192.168.1.5",), 7001)
    known.add(hint)
    async with running(known, own=own):
        await until(known.paths_to_peers)
        first = contact_tasks()
        assert len(first) == 4
        for _ in range(3):
            known.forget("peer")
            assert known.paths_to_peers() == ()
            known.add(hint)
            own.news.notify()  # some old tasks would see the new hint, and some would not
            await until(known.paths_to_peers)
            await until(lambda: contact_tasks() == first)
        known.forget("peer")
        await until(lambda: not contact_tasks())


async def test_a_node_may_be_forgotten_while_it_is_heard():
    """As happens when too many other nodes are added."""
    client = Client(["192.168.1.5:7001"])
    known = book(client)
    own = agent(heard=lambda _: known.forget("peer"))
    known.add(PeerHint("peer", ("192.168.1.5",), 7001))
    async with running(known, own=own) as task:
        await until(lambda: known.hint_of("peer") is None and not contact_tasks())
        known.add(PeerHint("other", ("192.168.1.6",), 7001))
        await until(lambda: "192.168.1.6:7001" in client.called)
        assert not task.done()


@pytest.mark.parametrize(
    ("anywhere", "called"), [(False, ["[fd00::5]:7001"]), (True, ["8.8.8.8:7001", "[fd00::5]:7001"])]
)
async def test_a_name_is_called_at_its_near_addresses(monkeypatch, anywhere, called):
    async def addresses_of(host):
        assert host == "mini-2.local"
        return ["8.8.8.8", "fd00::5"]

    monkeypatch.setattr(seeking, "_addresses_of", addresses_of)
    client = Client(["[fd00::5]:7001"])
    known = book(client, anywhere=anywhere)
    async with running(known, ("mini-2.local", 7001)):
        await until(lambda: known.hint_of("peer"))
    assert client.called[: len(called)] == called
    assert known.hint_of("peer").addresses == ("fd00::5", "192.168.1.5")


async def test_a_name_is_resolved_anew_while_nobody_answers(monkeypatch):
    """As after a restart of a router, or on another network."""
    monkeypatch.setattr(seeking, "GONE_S", 0.0)
    present = ["192.168.1.5"]

    async def addresses_of(host):
        return list(present)

    monkeypatch.setattr(seeking, "_addresses_of", addresses_of)
    client = Client(["192.168.1.7:7001"])
    known = book(client)
    async with running(known, ("mini-2.local", 7001)):
        await until(lambda: len(client.called) > 2)
        assert known.hint_of("peer") is None
        present[:] = ["192.168.1.7"]
        await until(lambda: known.hint_of("peer"))
    assert known.hint_of("peer").addresses[0] == "192.168.1.7"


async def test_a_far_peer_is_not_called_without_a_secret(caplog):
    client = Client()
    async with running(book(client), ("203.0.113.9", 7001)):
        await until(lambda: caplog.records)
    assert "203.0.113.9" in caplog.text
    assert "--secret-file" in caplog.text
    assert not client.called


async def test_why_a_peer_does_not_answer_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(seeking, "GONE_S", 0.0)
    client = Client()
    with caplog.at_level(logging.WARNING):
        async with running(book(client), ("192.168.1.5", 7001)):
            await until(lambda: len(client.called) > 5)
            client.failure = SecretMismatch("192.168.1.5:7001 has another secret.")
            await until(lambda: len(caplog.records) > 1)
            called = len(client.called)
            await until(lambda: len(client.called) > called + 5)
    assert [record.message for record in caplog.records] == [
        "--peer 192.168.1.5:7001: nobody there",
        "--peer 192.168.1.5:7001 has another secret.",
    ]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.168.1.5:4711", "192.168.1.5"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:%5Bfe80::1%25en0%5D:4711", "fe80::1%en0"),
        ("ipv6:%5Bfe80::1%251%5D:4711", f"fe80::1%{socket.if_indextoname(1)}"),
        ("unix:/tmp/socket", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_caller(peer, host):
    assert host_of(peer) == host


async def test_a_node_with_public_addresses_only_is_not_passed_over_in_silence(caplog):
    book().add_advert(PeerHint("peer", ("203.0.113.9", "2a02::5"), 7001))
    assert "203.0.113.9, 2a02::5" in caplog.text
    assert "--secret-file" in caplog.text


async def test_an_advert_that_is_passed_over_is_told_of_once_and_not_for_ever(caplog):
    known = book()
    far = PeerHint("peer", ("203.0.113.9",), 7001)
    for _ in range(5):
        known.add_advert(far)
    assert len(caplog.records) == 1
    for number in range(2 * MAX_NODES):
        known.add_advert(PeerHint(f"x{number}", ("203.0.113.9",), 7001))
    assert len(caplog.records) == MAX_NODES


async def test_what_is_said_where_anybody_may_be_is_a_hint_only():
    """At a `--peer` any member may answer in any name. Its state counts only where it has to prove that name."""
    told, called = [], []

    class Member(Client):
        async def exchange(self, peer, heartbeat, timeout_s):
            called.append(peer)
            return Heartbeat(report("peer"))

    known = book(Member())
    own = agent(heard=lambda answer: told.append(called[-1]))
    async with running(known, ("192.168.1.5", 7001), own=own):
        await until(lambda: told)
    assert called[0] == Address("192.168.1.5:7001")
    assert set(told) == {Address("192.168.1.5:7001", "peer")}


class Cables(Client):
    """Some addresses fall silent, as after a cable was pulled: each call there times out."""

    def __init__(self, answers):
        super().__init__(answers)
        self.silent = set()
        self.timed_out = []

    async def call(self, peer, answer):
        if peer.target in self.silent:
            self.called.append(peer.target)
            await asyncio.sleep(exchange.ANSWER_S)
            self.timed_out.append(peer.target)
            raise PeerTimeout(f"{peer} did not answer in time.")
        return await super().call(peer, answer)


THREE = ("169.254.1.5", "169.254.1.6", "192.168.1.5")


async def test_a_node_is_heard_over_another_way_before_the_best_one_is_given_up():
    """Calls that wait on the lost path are ended as soon as another one works."""
    peers = [f"{address}:7001" for address in THREE]
    client, heard = Cables(peers), asyncio.Event()
    own = agent(heard=lambda _: heard.set())
    known = book(client)
    known.add(PeerHint("peer", THREE, 7001))
    async with running(known, own=own):
        await until(known.paths_to_peers)
        best = known.address_of("peer").target
        client.silent = {best, next(peer for peer in peers if peer != best)}
        heard.clear()
        own.news.notify()
        await asyncio.wait_for(heard.wait(), 60)
        assert not client.timed_out
        assert not client.dropped
        await until(lambda: known.address_of("peer").target not in client.silent)
        await until(lambda: best in client.dropped)
        assert set(client.dropped) <= client.silent


@pytest.mark.slow
async def test_a_node_that_is_slow_everywhere_keeps_its_connections():
    told = []
    own = agent(unreachable=lambda node, gone_at=None: told.append(node))
    peers = [f"{address}:7001" for address in THREE]
    client = Cables(peers)
    known = book(client)
    known.add(PeerHint("peer", THREE, 7001))
    async with running(known, own=own):
        await until(known.paths_to_peers)
        client.silent = set(peers)
        await until(lambda: len(client.timed_out) > 6)
    assert not client.dropped
    assert not told


async def test_a_try_that_fails_lets_the_next_one_begin_at_once_and_none_is_broken_off():
    begun, ended, hold = [], [], asyncio.Event()

    def attempt(number, result, *, wait=False):
        async def run():
            begun.append(number)
            if wait:
                await hold.wait()
            ended.append(number)
            return result

        return run

    async with asyncio.TaskGroup() as group:
        tries = [attempt(0, False), attempt(1, True, wait=True), attempt(2, False), attempt(3, True), attempt(4, True)]
        assert await happy_eyeballs(tries, group)
        assert (begun, ended) == ([0, 1, 2, 3], [0, 2, 3])
        hold.set()
    assert ended == [0, 2, 3, 1]
    async with asyncio.TaskGroup() as group:
        assert not await happy_eyeballs([attempt(5, False), attempt(6, False)], group)
        assert not await happy_eyeballs([], group)
