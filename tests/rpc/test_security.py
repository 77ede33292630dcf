"""Who knows the secret is let in, who does not is kept out, and who listens on the wire learns nothing."""

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from node.core.errors import PeerUnavailable, SecretMismatch
from node.core.generation import GenerateRequest
from node.core.types import Heartbeat
from node.rpc.client import RpcClient
from node.rpc.security import Security, secure
from tests.rpc.conftest import Handlers, frame, report, serving

SECRET = b"correct horse battery staple"
MARK = b"an activation that nobody else may read"
PROMPT = tuple(range(100, 164))


@pytest.fixture(scope="module")
def ours() -> Security:
    return secure(SECRET, "home")


@pytest.fixture(scope="module")
def theirs() -> Security:
    return secure(b"another secret of another cluster", "home")


async def converse(client: RpcClient, peer: str, handlers: Handlers) -> None:
    """A heartbeat, a prompt and its tokens, and a frame."""
    answer = await client.exchange(peer, Heartbeat(report("caller")), 5)
    assert answer.report.info.id == "server"
    tokens = [event.token async for event in client.generate(peer, "ring-1", GenerateRequest("r", "m", PROMPT, 64))]
    assert tuple(tokens) == PROMPT
    link = client.link(peer, lambda reason: None)
    await link.send(frame(MARK))
    taken = await asyncio.wait_for(handlers.frames_taken.get(), 5)
    assert bytes(taken.tensors[0].data) == MARK
    link.close()


async def test_nodes_that_computed_their_keys_apart_trust_each_other(ours: Security) -> None:
    async with serving(ours) as (handlers, peer), RpcClient(secure(SECRET, "home")) as client:
        await converse(client, peer, handlers)


async def refused(client: RpcClient, peer: str, kind: type[Exception]) -> str:
    """Every kind of call fails; what the heartbeat's says."""
    with pytest.raises(kind) as heartbeat:
        await client.exchange(peer, Heartbeat(report("caller")), 5)
    for ask in (client.probe(peer, 5), client.want(peer, "m"), client.listing(peer, "m"), client.describe(peer, "m")):
        with pytest.raises(PeerUnavailable):
            await ask
    with pytest.raises(PeerUnavailable):
        await anext(client.generate(peer, "ring-1", GenerateRequest("r", "m", PROMPT, 64)))
    with pytest.raises(PeerUnavailable):
        await anext(client.read(peer, "m", "config.json", 0))
    broken = asyncio.Event()
    link = client.link(peer, lambda reason: broken.set())
    with contextlib.suppress(PeerUnavailable):
        await link.send(frame(MARK))
    await asyncio.wait_for(broken.wait(), 5)
    return str(heartbeat.value)


async def test_another_secret_is_kept_out_and_told_so(ours: Security, theirs: Security) -> None:
    async with serving(ours) as (handlers, peer):
        async with RpcClient(theirs) as client:
            assert "another secret" in await refused(client, peer, SecretMismatch)
        async with RpcClient(secure(SECRET, "office")) as client:
            assert "--secret-file" in await refused(client, peer, SecretMismatch)
        assert not handlers.heartbeats
        assert handlers.frames_taken.empty()
        async with RpcClient(ours) as client:
            await converse(client, peer, handlers)


async def test_no_secret_against_one_and_one_against_none(ours: Security) -> None:
    async with serving(ours) as (handlers, peer), RpcClient() as client:
        assert "may have a secret" in await refused(client, peer, SecretMismatch)
        assert not handlers.heartbeats
    async with serving() as (handlers, peer), RpcClient(ours) as client:
        assert "has no secret" in await refused(client, peer, SecretMismatch)
        assert not handlers.heartbeats


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
    """With TLS, but without a certificate; and without TLS."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    anybody.set_alpn_protocols(["h2"])
    async with serving(ours) as (handlers, peer):
        for tls, most in ((anybody, 0), (None, 100)):
            said = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                async with connected(peer, tls) as (reader, writer):
                    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
                    said = await asyncio.wait_for(reader.read(), 10)
            assert len(said) <= most, "an alert of TLS at most"
        async with RpcClient(ours) as client:
            await converse(client, peer, handlers)


@contextlib.asynccontextmanager
async def overheard(peer: str) -> AsyncIterator[tuple[str, bytearray]]:
    """An address that leads to `peer` through somebody who writes down all bytes of both directions."""
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
    for task in joined:  # the caller's gRPC closes its connections in its own time
        task.cancel()
    await asyncio.wait(joined)


@pytest.mark.parametrize("secret", [True, False])
async def test_who_listens_on_the_wire_learns_nothing(ours: Security, secret: bool) -> None:
    """Without a secret all of it is there to read, which shows that the test would see it."""
    security = ours if secret else None
    readable = [MARK, bytes(PROMPT[:20]), b"name-of-caller", b"name-of-server", b"ring-1", b"/pippin.control.Control"]
    async with serving(security) as (handlers, peer), overheard(peer) as (relay, heard):
        async with RpcClient(security) as client:
            await converse(client, relay, handlers)
        assert len(heard) > 2000
        found = [word for word in readable if word in heard]
        assert found == ([] if secret else readable)


# --- what is derived --------------------------------------------------------------------------------------------------


def authorities(*made: Security) -> int:
    """How many different keys certificates are signed with."""
    public = [x509.load_pem_x509_certificate(each.authority).public_key() for each in made]
    return len({key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in public})


def test_all_nodes_compute_one_authority(ours: Security) -> None:
    again = secure(SECRET, "home")
    assert authorities(ours, again) == 1
    assert (again.fingerprint, again.server_name) == (ours.fingerprint, ours.server_name)
    assert again.key != ours.key, "each node has a key of its own"


def test_neither_secret_nor_cluster_can_be_changed(ours: Security) -> None:
    made = [ours, secure(SECRET + b"!", "home"), secure(SECRET, "home-2")]
    assert len({each.fingerprint for each in made}) == 3
    assert authorities(*made) == 3


def test_certificates_hold_whatever_the_clock_says(ours: Security) -> None:
    for pem in (ours.authority, ours.certificate):
        certificate = x509.load_pem_x509_certificate(pem)
        assert certificate.not_valid_before_utc < dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        assert certificate.not_valid_after_utc.year == 9999


def test_nothing_shown_holds_the_secret_or_a_key(ours: Security) -> None:
    shown = repr(ours) + ours.fingerprint + ours.server_name + (ours.authority + ours.certificate).decode()
    assert SECRET.decode() not in shown
    assert "PRIVATE" not in shown


def test_a_nodes_certificate_makes_no_others(ours: Security) -> None:
    """It is no authority, so a node's key that leaks lets nobody mint more."""
    certificate = x509.load_pem_x509_certificate(ours.certificate)
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    authority = x509.load_pem_x509_certificate(ours.authority)
    certificate.verify_directly_issued_by(authority)
