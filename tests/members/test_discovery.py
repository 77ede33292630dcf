"""Real mDNS on loopback between instances in one process."""

import asyncio
import contextlib
import dataclasses
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from zeroconf import AddressResolver, DNSOutgoing, DNSPointer, IPVersion
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from node.core.nodes import NodeInfo, PeerHint
from node.core.signal import Signal
from node.members import discovery as module
from node.members import multicast_limiter
from node.members.discovery import SERVICE, Discovery
from node.members.multicast_limiter import MOST_NAMES, MulticastLimiter

LOOPBACK = ("127.0.0.1",)
WAIT_S = 10.0
"""The first query asks for a unicast answer, which another program on the port may get; and answers multicast within
the last second are not repeated. So an answer takes two seconds, and more on a busy machine.
"""
RUN = uuid.uuid4().hex[:8]
"""Makes this run's names unique: other runs on this machine hear its mDNS."""
NAME = f"discovery-{RUN}"


def info(node: str, *, cluster: str = NAME, port: int = 7001) -> NodeInfo:
    return NodeInfo(f"{node}-{RUN}", 1, node, cluster, "0.1.0", 1, LOOPBACK, port, port + 1)


def hint(node: str, port: int) -> PeerHint:
    return PeerHint(f"{node}-{RUN}", LOOPBACK, port)


def _is_at(hint: PeerHint, node: str, port: int, addresses: set[str]) -> bool:
    return (hint.id, hint.grpc_port, set(hint.addresses)) == (f"{node}-{RUN}", port, addresses)


class Started:
    """A discovery that collects its hints. An advert may be heard twice."""

    def __init__(self, node: NodeInfo, fingerprint: str = "") -> None:
        self.hints: list[PeerHint] = []
        self.heard = Signal()
        self.discovery = Discovery(node, LOOPBACK, self.hear, fingerprint=fingerprint)

    def hear(self, hint: PeerHint) -> None:
        self.hints.append(hint)
        self.heard.notify()

    async def hears(self, node: str, port: int, *more: str) -> None:
        """Wait for a hint of the node at that port, on loopback and at `more` addresses."""
        while not any(_is_at(each, node, port, {*LOOPBACK, *more}) for each in self.hints):
            assert await self.heard.wait(WAIT_S), f"{node} is not heard at {port}: {self.hints}"


@contextlib.asynccontextmanager
async def started(*nodes: NodeInfo, fingerprint: str = "") -> AsyncIterator[list[Started]]:
    all_ = [Started(node, fingerprint) for node in nodes]
    try:
        assert all(await asyncio.gather(*(s.discovery.start() for s in all_)))
        yield all_
    finally:
        await asyncio.gather(*(s.discovery.stop() for s in all_))


async def address_of(host: str, within_s: float = WAIT_S) -> list[str]:
    """Resolve a host's addresses; return as soon as there is one."""
    zeroconf = AsyncZeroconf(list(LOOPBACK), ip_version=IPVersion.V4Only)
    found = AddressResolver(host)
    await found.async_request(zeroconf.zeroconf, within_s * 1000)
    await zeroconf.async_close()
    return found.parsed_addresses()


async def test_two_nodes_of_a_cluster_find_each_other_and_no_other():
    async with started(info("a", port=7001), info("x", cluster=f"other-{RUN}")) as (a, x):
        async with started(info("b", port=7003)) as (b,):
            await b.hears("a", 7001)
            await a.hears("b", 7003)
            assert [(each.name, each.hint.grpc_port) for each in a.discovery.adverts.values()] == [("b", 7003)]
        async with asyncio.timeout(WAIT_S):
            while a.discovery.adverts:  # noqa: ASYNC110 - nobody is told of a withdrawal
                await asyncio.sleep(0.02)
        assert set(a.hints) == {hint("b", 7003)}
        assert not x.hints


@pytest.mark.slow
async def test_a_node_that_restarts_on_another_port_is_told_anew():
    async with started(info("a")) as (a,):
        async with started(info("b", port=7003)):
            await a.hears("b", 7003)
        async with started(dataclasses.replace(info("b", port=7005), incarnation=2)):
            await a.hears("b", 7005)


async def test_changed_addresses_are_told_anew():
    async with started(info("a"), info("b", port=7003)) as (a, b):
        await a.hears("b", 7003)
        moved = dataclasses.replace(info("b", port=7003), addresses=("127.0.0.1", "10.0.0.9"))
        await b.discovery.update(moved, LOOPBACK)
        await a.hears("b", 7003, "10.0.0.9")


@pytest.mark.slow
async def test_the_name_of_the_cluster_follows_the_head():
    async with started(info("a"), info("b", port=7003)) as (a, b):
        await a.hears("b", 7003)
        await b.hears("a", 7001)
        assert await a.discovery.name.serve(info("a"))
        assert await address_of(f"{NAME}.local.") == ["127.0.0.1"]
        await a.discovery.name.drop()
        assert await b.discovery.name.serve(info("b"))  # though the old head's record is cached
        assert await address_of(f"{NAME}.local.") == ["127.0.0.1"]
        await b.discovery.name.drop()
        assert await address_of(f"{NAME}.local.", within_s=2.0) == []


@pytest.mark.slow
async def test_the_name_leads_to_no_cable_that_only_one_machine_has():
    node = dataclasses.replace(info("a"), addresses=(*LOOPBACK, "169.254.7.7", "fe80::7"))
    async with started(node) as (a,):
        assert await a.discovery.name.serve(node)
        assert await address_of(f"{NAME}.local.") == ["127.0.0.1"]


@pytest.mark.slow
async def test_a_name_that_another_machine_has_is_left_alone(caplog):
    stranger = AsyncZeroconf(list(LOOPBACK), ip_version=IPVersion.V4Only)
    printer = AsyncServiceInfo(
        "_http._tcp.local.",
        "Printer._http._tcp.local.",
        port=80,
        server=f"{NAME}.local.",
        parsed_addresses=["10.9.9.9"],
    )
    await (await stranger.async_register_service(printer, cooperating_responders=True))
    for _ in range(10):  # on a busy machine the other one may answer after a node's look at the name
        async with started(info("a")) as (a,):
            if not await a.discovery.name.serve(info("a")):
                break
    assert "belongs to another machine (10.9.9.9)" in caplog.text
    await stranger.async_close()


async def test_without_multicast_a_node_goes_on_with_a_warning(monkeypatch, caplog):
    def no_multicast(*_: object, **__: object) -> AsyncZeroconf:
        raise OSError(19, "No such device")

    monkeypatch.setattr(module, "AsyncZeroconf", no_multicast)
    lonely = Discovery(info("a"), (), lambda hint: None)
    with caplog.at_level(logging.WARNING):
        assert not await lonely.start()
    assert "--peer" in caplog.text
    assert "No such device" in lonely.failure
    assert not await lonely.name.serve(info("a"))
    await lonely.name.drop()
    await lonely.update(info("a"), LOOPBACK)
    await lonely.stop()


@contextlib.asynccontextmanager
async def running(found: Started) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(found.discovery.run(lambda: False, Signal()))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await found.discovery.stop()


async def until(ask: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if ask():
                return
            await asyncio.sleep(0.01)


async def test_multicast_that_works_later_is_found_out(monkeypatch, caplog):
    """As when the user grants the permission."""
    works, tries = AsyncZeroconf, []

    def at_the_third_try(*args: Any, **options: Any) -> AsyncZeroconf:
        tries.append(args)
        if len(tries) < 3:
            raise OSError(65, "No route to host")
        return works(*args, **options)

    monkeypatch.setattr(module, "AsyncZeroconf", at_the_third_try)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    late = Started(info("a"))
    async with running(late):
        await until(lambda: len(tries) == 3)
        async with started(info("b", port=7003)):
            await late.hears("b", 7003)
        await until(lambda: not late.discovery.failure)
    assert [record.levelname for record in caplog.records if "No route" in record.message] == ["WARNING"]


async def test_why_a_name_is_not_advertised_is_told(caplog):
    """Also for an error without text."""
    async with started(info("a")) as (a,):
        zeroconf = a.discovery._zeroconf
        assert zeroconf
        await zeroconf.async_close()
        assert not await a.discovery.name.serve(info("a"))
    assert f"{NAME}.local could not be advertised: NotRunningException" in caplog.text


async def test_a_head_that_ends_while_it_takes_the_name_says_nothing_of_it(caplog):
    found = Started(info("a"))
    task = asyncio.create_task(found.discovery.run(lambda: True, Signal()))
    await until(found.discovery.name._naming.locked)
    task.cancel()
    await asyncio.wait([task])
    assert found.discovery._zeroconf is None
    assert not caplog.records


async def test_who_hears_nothing_tries_again(monkeypatch, caplog):
    """A program without permission for the network may still be able to open sockets."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "_DEAF_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    hear = MulticastLimiter.watch
    monkeypatch.setattr(MulticastLimiter, "watch", lambda *_: None)
    late = Started(info("a"))
    async with running(late):
        await until(lambda: "nothing is heard" in caplog.text)
        monkeypatch.setattr(MulticastLimiter, "watch", hear)
        async with started(info("b", port=7003)):
            await late.hears("b", 7003)


def adverts(first: int, count: int, *, suffix: str = SERVICE) -> bytes:
    """A packet with the names of nodes that do not exist."""
    out = DNSOutgoing(0x8400)
    for number in range(first, first + count):
        out.add_answer_at_time(DNSPointer(SERVICE, 12, 1, 2**31 - 1, f"x{number}-{RUN}.{suffix}"), 0)
    (packet,) = out.packets()
    return packet


def heard_by(found: Started) -> asyncio.DatagramProtocol:
    """Return the protocol that takes packets as from the network."""
    zeroconf = found.discovery._zeroconf
    assert zeroconf
    protocol: Any = zeroconf.zeroconf.engine.readers[0].transport.get_protocol()
    return protocol


@pytest.mark.slow
async def test_a_flood_of_names_stops_the_listening_for_a_while(monkeypatch, caplog):
    """What it heard before is forgotten."""
    monkeypatch.setattr(module, "RETRY_S", 0.5)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setattr(multicast_limiter, "BURST_S", 1e9)
    flooded = Started(info("a"))
    async with running(flooded):
        await until(lambda: flooded.discovery._zeroconf)
        zeroconf = flooded.discovery._zeroconf
        assert zeroconf
        await zeroconf.zeroconf.async_wait_for_start()
        protocol = heard_by(flooded)
        for number in range(200):
            protocol.datagram_received(adverts(25 * number, 25), ("127.0.0.1", 5353))
        assert len(flooded.discovery._unresolved) <= MOST_NAMES
        assert sum(map(len, zeroconf.zeroconf.cache.cache.values())) < 2 * MOST_NAMES
        await until(lambda: flooded.discovery._zeroconf is None)
        assert f"more than {MOST_NAMES} names" in caplog.text
        async with started(info("b", port=7003)):
            await flooded.hears("b", 7003)
        assert not flooded.discovery._unresolved


async def test_packets_beyond_their_share_of_time_are_dropped_unread(monkeypatch):
    monkeypatch.setattr(multicast_limiter, "MOST_NAMES", 10**9)
    packets = [adverts(25 * number, 25) for number in range(2000)]
    async with started(info("a")) as (flooded,):
        protocol, limiter = heard_by(flooded), flooded.discovery._limiter
        limiter._left = -1.0  # a long burst was read
        for packet in packets:
            protocol.datagram_received(packet, ("127.0.0.1", 5353))
        assert limiter.excess
        assert limiter.packets >= len(packets)
        assert len(flooded.discovery._unresolved) <= 25


@pytest.mark.parametrize("suffix", ["_http._tcp.local.", "local.", "_pippin._udp.local.", "x" * 60 + ".", SERVICE[1:]])
async def test_odd_names_are_passed_over(suffix, caplog):
    async with started(info("a")) as (a,):
        heard_by(a).datagram_received(adverts(0, 5, suffix=suffix), ("127.0.0.1", 5353))
        assert not a.discovery._unresolved
    assert not caplog.records


async def test_an_address_that_this_machine_lacks_is_passed_over(caplog):
    astray = Discovery(info("a"), ("203.0.113.9",), lambda hint: None)
    assert not await astray.start()
    assert "203.0.113.9" in caplog.text
    found = Discovery(info("a"), ("203.0.113.9", "127.0.0.1"), lambda hint: None)
    assert await found.start()
    await found.stop()


async def refused(by: Started, *nodes: str) -> dict[str, str]:
    """Wait until exactly these nodes are refused; return the reasons."""
    async with asyncio.timeout(WAIT_S):
        while True:
            reasons = {peer.report.info.name: peer.reason for peer in by.discovery.refused.values()}
            if reasons.keys() == set(nodes):
                return reasons
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_nodes_of_another_secret_are_shown_and_not_told(caplog):
    async with started(info("a"), info("b", port=7003), fingerprint="f00d") as (a, b):
        await a.hears("b", 7003)
        await b.hears("a", 7001)
        async with started(info("c", port=7005)) as (c,):
            assert await refused(c, "a", "b") == dict.fromkeys("ab", "it has a secret and this node has none")
            assert await refused(a, "c") == {"c": "it has no secret"}
            async with started(info("d", port=7007), fingerprint="beef"):
                assert (await refused(a, "c", "d"))["d"] == "it has another secret"
        assert await refused(a) == {}, "they said goodbye"
        assert set(a.hints) == {hint("b", 7003)}
        assert not c.hints
    assert "d (127.0.0.1) does not join: it has another secret" in caplog.text


@pytest.mark.slow
async def test_refused_nodes_that_ended_without_a_goodbye_are_forgotten(monkeypatch, caplog):
    monkeypatch.setattr(module, "_ASK_AGAIN_S", 0.1)
    monkeypatch.setattr(module, "_RESOLVE_MS", 200)
    async with started(info("a"), fingerprint="f00d") as (a,), started(info("b", port=7003)):
        gone = AsyncServiceInfo(
            SERVICE,
            f"gone-{RUN}.{SERVICE}",
            port=7005,
            host_ttl=2,
            properties={"id": f"gone-{RUN}", "name": "gone", "cluster": NAME},
            server=f"gone-{RUN}.local.",
            parsed_addresses=list(LOOPBACK),
        )
        out = DNSOutgoing(0x8400)
        for record in (gone.dns_pointer(), gone.dns_service(), gone.dns_text(), *gone.dns_addresses()):
            out.add_answer_at_time(record, 0)
        heard_by(a).datagram_received(out.packets()[0], (*LOOPBACK, 5353))
        await until(lambda: "gone (127.0.0.1) does not join" in caplog.text)
        await refused(a, "b")


async def test_who_starts_to_listen_again_forgets_what_it_heard():
    """The goodbye of a refused node may have come in between."""
    async with started(info("a"), fingerprint="f00d") as (a,):
        async with started(info("b", port=7003)):
            await refused(a, "b")
            await a.discovery.stop()
        await a.discovery.start()
        assert await refused(a) == {}


@pytest.mark.slow
async def test_a_node_that_is_given_the_secret_is_told():
    async with started(info("a"), fingerprint="f00d") as (a,):
        async with started(info("b", port=7003)):
            await refused(a, "b")
        async with started(dataclasses.replace(info("b", port=7005), incarnation=2), fingerprint="f00d"):
            await a.hears("b", 7005)
            assert await refused(a) == {}


async def test_the_advert_holds_no_more_than_the_fingerprint():
    node = dataclasses.replace(info("a"), name="é" * 400)
    advert = Discovery(node, LOOPBACK, lambda hint: None, fingerprint="f00d")._advert()
    assert advert.decoded_properties["secret"] == "f00d"
    assert set(advert.decoded_properties) == {
        "id",
        "cluster",
        "name",
        "secret",
        "version",
        "protocol",
        "api",
        "scheme",
        "incarnation",
    }
    assert all(len(key) + len(value or b"") < 255 for key, value in advert.properties.items())


async def test_invented_nodes_are_shown_up_to_a_bound_and_without_control_characters():
    async with started(info("a"), fingerprint="f00d") as (a,):
        for number in range(100):
            text = {"name": "evil\x1b[2J\n", "version": "1", "secret": "x"}
            a.discovery._refuse(f"n{number}", text, LOOPBACK, 7001)
        assert len(a.discovery.refused) == 64
        assert {peer.report.info.name for peer in a.discovery.refused.values()} == {"evil[2J"}


@pytest.mark.parametrize("fingerprint", ["", "f00d"])
async def test_no_id_of_an_advert_has_control_characters(fingerprint, caplog):
    odd = "evil\x1b[2J\n" + "x" * 5000
    text = {"id": odd, "cluster": NAME, "secret": ""}
    advert = SimpleNamespace(decoded_properties=text, parsed_scoped_addresses=lambda: list(LOOPBACK), port=7001)
    async with started(info("a"), fingerprint=fingerprint) as (a,):
        a.discovery._tell(advert)
        shown = [text for each in a.discovery.adverts.values() for text in (each.name, each.hint.id)]
        shown += [peer.report.info.id for peer in a.discovery.refused.values()]
    assert shown
    assert all(each.startswith("evil[2Jxxx") and each.isprintable() and len(each) < 500 for each in shown)
    assert "\x1b" not in caplog.text
