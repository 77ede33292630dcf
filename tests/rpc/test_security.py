"""A node with the secret is admitted, as the node of its key; others are refused and learn nothing from the wire."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from node.core.errors import NotAdmitted, PeerUnavailable, PippinError, SecretMismatch
from node.core.generation import GenerateRequest
from node.core.models import ModelVersion
from node.core.nodes import Address
from node.core.reports import Heartbeat
from node.host.node_key import NodeKey, id_of, new_key
from node.rpc import security as module
from node.rpc.client import RpcClient
from node.rpc.security import Security, secure
from tests.patience import PATIENCE_S
from tests.rpc.conftest import Handlers, frame, report, serving

SECRET = b"correct horse battery staple"
MARK = b"an activation that nobody else may read"
PROMPT = tuple(range(100, 164))


def member(secret: bytes = SECRET, cluster: str = "home", key: NodeKey | None = None) -> Security:
    """A member with its own key."""
    return secure(secret, cluster, key or new_key())


def node(security: Security | None) -> str:
    return id_of(security.key.public_key()) if security else "caller"


@pytest.fixture(scope="module")
def ours() -> Security:
    return member()


@pytest.fixture(scope="module")
def theirs() -> Security:
    return member(b"another secret of another cluster")


async def converse(client: RpcClient, peer: Address, handlers: Handlers, who: Security | None) -> None:
    """Send a heartbeat, a prompt and a frame; check the answers."""
    answer = await client.exchange(peer, Heartbeat(report(node(who))), 5)
    assert answer.report.info.id == "server"
    tokens = [event.token async for event in client.generate(peer, "ring-1", GenerateRequest("r", "m", PROMPT, 64))]
    assert tuple(tokens) == PROMPT
    link = client.link(peer, lambda reason: None)
    await link.send(frame(MARK))
    taken = await asyncio.wait_for(handlers.frames_taken.get(), PATIENCE_S)
    assert bytes(taken.tensors[0].data) == MARK
    link.close()
    assert {caller.node for caller in handlers.callers} == {node(who) if who else ""}
    handlers.callers.clear()


async def test_nodes_that_computed_their_keys_apart_trust_each_other(ours: Security) -> None:
    other = member()
    async with serving(ours) as (handlers, target), RpcClient(other) as client:
        await converse(client, Address(target), handlers, other)
        await converse(client, Address(target, node(ours)), handlers, other)


async def refused(client: RpcClient, peer: Address, kind: type[Exception]) -> str:
    """Check that every kind of call fails; return the text of the heartbeat's error."""
    with pytest.raises(kind) as heartbeat:
        await client.exchange(peer, Heartbeat(report("caller")), 5)
    for ask in (
        client.probe(peer, 5),
        client.want(peer, "m"),
        client.listing(peer, "m", "r"),
        client.describe(peer, ModelVersion("m", "r")),
    ):
        with pytest.raises(PeerUnavailable):
            await ask
    with pytest.raises(PeerUnavailable):
        await anext(client.generate(peer, "ring-1", GenerateRequest("r", "m", PROMPT, 64)))
    with pytest.raises(PeerUnavailable):
        await anext(client.read(peer, "m", "r", "config.json", 0))
    broken = asyncio.Event()
    link = client.link(peer, lambda reason: broken.set())
    with contextlib.suppress(PeerUnavailable):
        await link.send(frame(MARK))
    await asyncio.wait_for(broken.wait(), PATIENCE_S)
    return str(heartbeat.value)


async def test_another_secret_is_kept_out_and_told_so(ours: Security, theirs: Security) -> None:
    async with serving(ours) as (handlers, target):
        async with RpcClient(theirs) as client:
            assert "another secret" in await refused(client, Address(target), SecretMismatch)
            await refused(client, Address(target, node(ours)), PeerUnavailable)
        async with RpcClient(member(cluster="office")) as client:
            assert "--secret-file" in await refused(client, Address(target), SecretMismatch)
        assert not handlers.heartbeats
        assert handlers.frames_taken.empty()
        async with RpcClient(ours) as client:
            await converse(client, Address(target), handlers, ours)


async def test_no_secret_against_one_and_one_against_none(ours: Security) -> None:
    async with serving(ours) as (handlers, target), RpcClient() as client:
        assert "may have a secret" in await refused(client, Address(target), SecretMismatch)
        assert not handlers.heartbeats
    async with serving() as (handlers, target), RpcClient(ours) as client:
        assert "has no secret" in await refused(client, Address(target), SecretMismatch)
        assert not handlers.heartbeats


# --- a member that poses as another ---------------------------------------------------------------------------------


async def test_a_member_is_not_heard_as_another_node(ours: Security) -> None:
    """It has the secret, and so can make any certificate, but not with the other node's key."""
    other = member()
    async with serving(ours) as (handlers, target), RpcClient(other) as client:
        peer = Address(target, node(ours))
        for posed in (node(member()), node(ours), "head", ""):
            with pytest.raises(PippinError) as error:
                await client.exchange(peer, Heartbeat(report(posed)), 5)
            with pytest.raises(PippinError):
                await client.exchange(peer, Heartbeat(node=posed, digest=1), 5)
            assert error.value.code in {"not_admitted", "incompatible"}
        with pytest.raises(NotAdmitted):
            await client.leave(peer, node(member()), 1, 5)
        assert not handlers.heartbeats
        await converse(client, peer, handlers, other)


def member_and_authority() -> tuple[Security, NodeKey]:
    """A member, and the key of the cluster's authority, which it can compute."""
    authorities: list[NodeKey] = []
    original = module._certificate

    def spy(subject, issuer, public, signer, **more):
        if subject == issuer:
            authorities.append(signer)
        return original(subject, issuer, public, signer, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_certificate", spy)
        other = member()
    (authority,) = authorities
    return other, authority


KINDS: dict[str, Callable[[], Any]] = {
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "another curve": lambda: ec.generate_private_key(ec.SECP384R1()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_with_a_key_of_another_kind_speaks_for_no_node(ours: Security, kind: str) -> None:
    """Its key has no id, so no claimed id can be checked."""
    (other, authority), key = member_and_authority(), KINDS[kind]()
    leaf, top = module._name("pippin node"), module._name(f"pippin {other.fingerprint}")
    chain = module._certificate(leaf, top, key.public_key(), authority, server_name=other.server_name)
    async with serving(ours) as (handlers, target):
        async with RpcClient(dataclasses.replace(other, key=key, chain=chain)) as client:
            peer, broken = Address(target, node(ours)), asyncio.Event()
            for ask in (
                client.exchange(peer, Heartbeat(report(node(member()))), 5),
                client.leave(peer, node(member()), 1, 5),
                client.want(peer, "m"),
            ):
                with pytest.raises(NotAdmitted):
                    await ask
            link = client.link(peer, lambda reason: broken.set())
            with contextlib.suppress(PippinError):
                await link.send(frame(MARK))
            await asyncio.wait_for(broken.wait(), PATIENCE_S)
        assert not handlers.heartbeats
        assert handlers.frames_taken.empty()


def impostures(ours: NodeKey) -> dict[str, tuple[NodeKey, bytes]]:
    """Keys and chains with which a member, who can compute the authority's key, may pose as the node of `ours`."""
    made, (other, authority) = member(key=ours), member_and_authority()
    mine, original = other.key, module._certificate
    theirs, top, leaf = (module._name(name) for name in (node(made), f"pippin {other.fingerprint}", "pippin node"))
    public, shown = mine.public_key(), {"server_name": other.server_name}
    real = made.chain[made.chain.rindex(b"-----BEGIN") :]
    return {
        "its own chain": (mine, other.chain),
        "a certificate of its key, with the other's of the authority": (
            mine,
            original(leaf, theirs, public, mine, **shown) + real,
        ),
        "an authority of the other's name and its own key": (
            mine,
            original(leaf, theirs, public, mine, **shown) + original(theirs, top, public, authority, path_length=0),
        ),
        "an authority of the other's name and the cluster's key": (
            mine,
            original(leaf, theirs, public, authority, **shown)
            + original(theirs, top, authority.public_key(), authority, path_length=0),
        ),
        "certified by the cluster's authority": (
            mine,
            original(leaf, top, public, authority, **shown) + other.authority,
        ),
        "certified so by the other's name": (mine, original(theirs, top, public, authority, **shown) + other.authority),
        "certified by the anchor's name": (
            mine,
            original(theirs, module._name("pippin anchor"), public, authority, **shown) + real,
        ),
    }


IMPOSTURES = list(impostures(new_key()))


@pytest.mark.slow
@pytest.mark.parametrize("case", IMPOSTURES)
async def test_a_member_can_not_answer_for_another_node(ours: Security, case: str) -> None:
    """Its own port is reached at the other node's supposed address: by a forged advert or a machine in between."""
    key, chain = impostures(ours.key)[case]
    impostor = dataclasses.replace(member(), key=key, chain=chain)
    async with serving(impostor) as (handlers, target), RpcClient(member()) as client:
        await refused(client, Address(target, node(ours)), PeerUnavailable)
        assert not handlers.heartbeats
        assert handlers.frames_taken.empty()


async def test_an_id_that_is_no_key_is_nobody(ours: Security) -> None:
    async with serving(ours) as (_, target), RpcClient(member()) as client:
        for name in ("nobody", "é" * 53, "a" * 53, node(ours)[:-1], node(ours).upper()):
            with pytest.raises(PeerUnavailable, match="not a node's id"):
                await client.probe(Address(target, name), 5)
            with pytest.raises(PeerUnavailable, match="not a node's id"):
                client.link(Address(target, name), lambda reason: None)


@pytest.mark.slow
async def test_a_node_that_started_anew_is_known_by_its_key(ours: Security) -> None:
    peers = set()
    async with RpcClient(member()) as client:
        for _ in range(2):
            async with serving(member(key=ours.key)) as (_, target):
                peers.add(await client.probe(Address(target, node(ours)), 5))
    assert len(peers) == 2


@contextlib.asynccontextmanager
async def connected(
    peer: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = peer.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname="x" if tls else None)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_a_stranger_is_told_nothing(ours: Security) -> None:
    """With TLS but without a certificate; and without TLS."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    anybody.set_alpn_protocols(["h2"])
    async with serving(ours) as (handlers, target):
        for tls, most in ((anybody, 0), (None, 100)):
            said = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                async with connected(target, tls) as (reader, writer):
                    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
                    said = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert len(said) <= most, "an alert of TLS at most"
        async with RpcClient(ours) as client:
            await converse(client, Address(target), handlers, ours)


@contextlib.asynccontextmanager
async def overheard(peer: str) -> AsyncIterator[tuple[str, bytearray]]:
    """An address that leads to `peer` through an eavesdropper, who records the bytes of both directions."""
    heard = bytearray()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                heard.extend(data)
                writer.write(data)
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined.append(asyncio.current_task())
        try:
            async with connected(peer) as (there_reader, there_writer):
                await asyncio.gather(pipe(reader, there_writer), pipe(there_reader, writer))
        finally:
            writer.close()

    joined: list[asyncio.Task[None]] = []
    relay = await asyncio.start_server(join, "127.0.0.1", 0)
    yield f"127.0.0.1:{relay.sockets[0].getsockname()[1]}", heard
    relay.close()
    for task in joined:  # the caller's gRPC closes its connections later
        task.cancel()
    await asyncio.wait(joined)


@pytest.mark.parametrize("secret", [True, False])
async def test_who_listens_on_the_wire_learns_nothing(ours: Security, secret: bool) -> None:
    """Without a secret everything is readable, which shows that the test would detect it."""
    security = ours if secret else None
    readable = [
        MARK,
        bytes(PROMPT[:20]),
        f"name-of-{node(security)}".encode(),
        b"name-of-server",
        b"ring-1",
        b"/pippin.control.Control",
    ]
    async with serving(security) as (handlers, peer), overheard(peer) as (relay, heard):
        async with RpcClient(security) as client:
            await converse(client, Address(relay), handlers, security)
        assert len(heard) > 2000
        found = [word for word in readable if word in heard]
        assert found == ([] if secret else readable)


# --- what is derived --------------------------------------------------------------------------------------------------


def authorities(*made: Security) -> int:
    """Count the different keys that signed the certificates."""
    public = [x509.load_pem_x509_certificate(each.authority).public_key() for each in made]
    return len({key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in public})


def test_all_nodes_compute_one_authority(ours: Security) -> None:
    again = member()
    assert authorities(ours, again) == 1
    assert (again.fingerprint, again.server_name) == (ours.fingerprint, ours.server_name)


def test_neither_secret_nor_cluster_can_be_changed(ours: Security) -> None:
    made = [ours, member(SECRET + b"!"), member(cluster="home-2")]
    assert len({each.fingerprint for each in made}) == 3
    assert authorities(*made) == 3


def test_certificates_hold_whatever_the_clock_says(ours: Security) -> None:
    for certificate in x509.load_pem_x509_certificates(ours.authority + ours.chain):
        assert certificate.not_valid_before_utc < dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        assert certificate.not_valid_after_utc.year == 9999


def test_nothing_shown_holds_the_secret_or_a_key(ours: Security) -> None:
    shown = repr(ours) + ours.fingerprint + ours.server_name + (ours.authority + ours.chain).decode()
    assert SECRET.decode() not in shown
    assert "PRIVATE" not in shown


def test_a_chain_is_no_longer_than_it_has_to_be(ours: Security) -> None:
    """The node's certificate is no authority, and the certificate of its key may sign no further authority."""
    chain = x509.load_pem_x509_certificates(ours.chain + ours.authority)
    limits = [each.extensions.get_extension_for_class(x509.BasicConstraints).value for each in chain]
    assert [(limit.ca, limit.path_length) for limit in limits] == [(False, None), (True, 0), (True, 1)]
    for certificate, issuer in itertools.pairwise(chain):
        certificate.verify_directly_issued_by(issuer)
