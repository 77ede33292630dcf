"""Files from several peers: each part once, whatever peers do; wrong content is not used."""

import asyncio
import hashlib
import random
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from node.core.errors import PeerUnavailable
from node.core.model_files import File
from node.core.models import HeldModel
from node.core.nodes import Address
from node.core.pool import Pool, Pools
from node.model import gathering as module
from node.model.gathering import Gathering
from node.model.parts import PART

A, B, C = (Address(f"10.0.0.{number}:1", name) for number, name in enumerate("abc"))
SIZE = 5 * PART + 100
CONTENT = random.Random(2).randbytes(SIZE)
FILE = File("model.safetensors", SIZE, hashlib.sha256(CONTENT).hexdigest())
MB = 1 << 20


class Client:
    """Peers with one file each; some die, stop to send, or send something else."""

    def __init__(self) -> None:
        self.contents: dict[Address, bytes] = {}
        self.dies_after: dict[Address, int] = {}
        self.sent: dict[Address, list[tuple[int, int]]] = {}
        """Spans of bytes that each peer has sent."""
        self.started = asyncio.Event()
        """Peers send when as many as `together` are asked."""
        self.together = 1

    async def read(
        self, peer: Address, model: str, revision: str, name: str, offset: int, length: int = 0
    ) -> AsyncIterator[tuple[bytes, str]]:
        assert name == FILE.name
        content, sent = self.contents.get(peer, CONTENT), self.sent.setdefault(peer, [])
        if len(self.sent) == self.together:
            self.started.set()
        await self.started.wait()
        for at in range(offset, offset + length, MB):
            if sum(end - start for start, end in sent) >= self.dies_after.get(peer, 1 << 60):
                raise PeerUnavailable(f"{peer} is dead.")
            chunk = content[at : min(at + MB, offset + length)]
            sent.append((at, at + len(chunk)))
            yield chunk, ""
        if not length:
            yield b"", hashlib.sha256(content).hexdigest()


@pytest.fixture
def client() -> Client:
    return Client()


def gathering(client, target, refused, pools=None):
    return Gathering(client, pools or Pools(), HeldModel("org/model", "c" * 40), lambda: target, refused)


async def gathered(client, tmp_path, *peers, file=FILE, refused=None):
    told = []
    job = gathering(client, tmp_path, set() if refused is None else refused)
    async with asyncio.timeout(30):
        whole = await job.gather({file: list(peers)}, told.append)
    return job, whole, told


def spans(client):
    return sorted(span for sent in client.sent.values() for span in sent)


def is_once(client):
    found = spans(client)
    return [start for start, _ in found] == [0, *(end for _, end in found[:-1])] and found[-1][1] == SIZE


@pytest.mark.parametrize("file", [FILE, File(FILE.name, SIZE)], ids=["with its digest", "without"])
async def test_parts_come_from_all_peers_and_each_once(client, tmp_path, file):
    client.together = 3
    _, whole, told = await gathered(client, tmp_path, A, B, C, file=file)
    assert whole
    assert (tmp_path / FILE.name).read_bytes() == CONTENT
    assert set(client.sent) == {A, B, C}
    assert is_once(client)
    assert told == sorted(told)
    assert told[-1] == SIZE


async def test_what_a_dying_peer_lacks_comes_from_the_others(client, tmp_path):
    client.together, client.dies_after = 2, {A: 3 * MB}
    job, whole, _ = await gathered(client, tmp_path, A, B)
    assert whole
    assert (tmp_path / FILE.name).read_bytes() == CONTENT
    assert client.sent[A][-1][1] - client.sent[A][0][0] == 3 * MB
    assert is_once(client), "nothing is fetched again"
    assert job.lost == {A}


async def test_when_all_die_the_next_load_goes_on_where_they_were(client, tmp_path):
    client.dies_after = {A: 9 * MB, B: 5 * MB}
    client.together = 2
    _, whole, _ = await gathered(client, tmp_path, A, B)
    assert not whole
    assert not (tmp_path / FILE.name).exists()
    _, whole, told = await gathered(client, tmp_path, C)
    assert whole
    assert told[0] == 14 * MB
    assert (tmp_path / FILE.name).read_bytes() == CONTENT
    assert is_once(client)


async def test_a_silent_peer_loses_its_part(client, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr("node.model.parts.PATIENCE_S", 0.05)
    read = client.read

    async def stalling(peer, *span, length=0):
        async for chunk in read(peer, *span, length=length):
            yield chunk
            if peer == A:
                await asyncio.Event().wait()

    client.read, client.together = stalling, 2
    await gathered(client, tmp_path, A, B)
    assert (tmp_path / FILE.name).read_bytes() == CONTENT
    assert is_once(client), "B went on where A was"


async def test_a_peer_with_wrong_content_is_found_out_and_not_asked_again(client, tmp_path, caplog):
    wrong = bytearray(CONTENT)
    wrong[PART + 5] ^= 1
    wrong[5] ^= 1
    client.contents, client.together, refused = {A: bytes(wrong)}, 2, set()
    _, whole, _ = await gathered(client, tmp_path, A, B, refused=refused)
    assert whole
    assert (tmp_path / FILE.name).read_bytes() == CONTENT
    assert {peer for peer, _, _ in refused} == {"a"}
    assert f"expected is {FILE.digest}" in caplog.text

    (tmp_path / FILE.name).unlink()
    client.sent.clear()
    client.together = 1
    await gathered(client, tmp_path, A, B, refused=refused)
    assert set(client.sent) == {B}


async def test_wrong_content_alone_is_not_used(client, tmp_path):
    client.contents = {A: bytes(SIZE)}
    job, whole, _ = await gathered(client, tmp_path, A)
    assert not whole
    assert not (tmp_path / FILE.name).exists()
    found = hashlib.sha256(bytes(SIZE)).hexdigest()
    assert f"{FILE.name} was damaged on its way: its digest is {found}, expected is {FILE.digest}." in str(job.failure)


async def test_a_file_that_another_load_fetches_is_waited_for(client, tmp_path):
    async with asyncio.timeout(30):
        await asyncio.gather(*(gathered(client, tmp_path, A, B) for _ in range(2)))
    assert is_once(client)


async def test_a_file_that_another_load_finishes_just_then_is_not_fetched_again(client, tmp_path, monkeypatch):
    there = module.has_file

    def finished_after_the_look(target, file):
        monkeypatch.setattr(module, "has_file", there)
        (tmp_path / FILE.name).write_bytes(CONTENT)
        return False

    monkeypatch.setattr(module, "has_file", finished_after_the_look)
    _, whole, _ = await gathered(client, tmp_path, A)
    assert whole
    assert client.sent == {}
    assert [path.name for path in tmp_path.iterdir()] == [FILE.name]


async def test_files_come_from_peers_while_all_downloads_from_the_hub_are_slow(client, tmp_path):
    pools, go_on = replace(Pools(), downloads=Pool("download", 1, 9), pulls=Pool("pull", 1, 9)), threading.Event()
    slow = [asyncio.ensure_future(pool.run(go_on.wait, 60)) for pool in (pools.downloads, pools.pulls) for _ in "12"]
    async with asyncio.timeout(30):
        assert await gathering(client, tmp_path, set(), pools).gather({FILE: [A]}, lambda _: None)
    assert not any(each.done() for each in slow)
    go_on.set()
    await asyncio.gather(*slow)
