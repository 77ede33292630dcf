"""Files from peers: each byte once, whatever peers do; wrong content is not used."""

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

A, B, C = (Address(f"10.0.0.{number}:1", name) for number, name in enumerate("abc"))
MB = 1 << 20
SIZE = 5 * MB + 100
CONTENTS = {f"model-{number}.safetensors": random.Random(number).randbytes(SIZE) for number in range(4)}
FILES = [File(name, SIZE, hashlib.sha256(content).hexdigest()) for name, content in CONTENTS.items()]
FILE, CONTENT = FILES[0], CONTENTS["model-0.safetensors"]


class Client:
    """Peers that have all files; some die, stop to send, or send something else."""

    def __init__(self) -> None:
        self.contents: dict[Address, bytes] = {}
        self.dies_after: dict[Address, int] = {}
        self.sent: dict[Address, list[tuple[str, int, int]]] = {}
        """File and span of bytes that each peer has sent."""
        self.started = asyncio.Event()
        """Peers send when as many as `together` are asked."""
        self.together = 1

    async def read(
        self, peer: Address, model: str, revision: str, name: str, offset: int, length: int = 0
    ) -> AsyncIterator[tuple[bytes, str]]:
        content, sent = self.contents.get(peer, CONTENTS[name]), self.sent.setdefault(peer, [])
        if len(self.sent) == self.together:
            self.started.set()
        await self.started.wait()
        end = offset + length if length else SIZE
        for at in range(offset, end, MB):
            if sum(end - start for _, start, end in sent) >= self.dies_after.get(peer, 1 << 60):
                raise PeerUnavailable(f"{peer} is dead.")
            chunk = content[at : min(at + MB, end)]
            sent.append((name, at, at + len(chunk)))
            yield chunk, ""
        if not length:
            yield b"", hashlib.sha256(content).hexdigest()


@pytest.fixture
def client() -> Client:
    return Client()


def gathering(client, target, refused, pools=None):
    return Gathering(client, pools or Pools(), HeldModel("org/model", "c" * 40), lambda: target, refused)


async def gathered(client, tmp_path, *peers, files=(FILE,), refused=None):
    told = []
    job = gathering(client, tmp_path, set() if refused is None else refused)
    async with asyncio.timeout(30):
        whole = await job.gather(dict.fromkeys(files, peers), told.append)
    return job, whole, told


def is_once(client, *files):
    """Whether each byte of the files was sent once."""
    found = sorted(span for sent in client.sent.values() for span in sent)
    spans = [(file.name, at, min(at + MB, SIZE)) for file in files for at in range(0, SIZE, MB)]
    return found == sorted(spans)


def holds(tmp_path, *files):
    return all((tmp_path / file.name).read_bytes() == CONTENTS[file.name] for file in files)


@pytest.mark.parametrize("files", [FILES, [File(file.name, SIZE) for file in FILES]], ids=["with digests", "without"])
async def test_files_come_from_all_peers_at_once_and_each_from_one(client, tmp_path, files):
    client.together = 3
    _, whole, told = await gathered(client, tmp_path, A, B, C, files=files)
    assert whole
    assert holds(tmp_path, *FILES)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{end}" for name in CONTENTS for end in ("", ".digest")
    }
    assert set(client.sent) == {A, B, C}
    assert all(len([peer for peer in client.sent if file.name in dict(spans(client, peer))]) == 1 for file in FILES)
    assert is_once(client, *FILES)
    assert told == sorted(told)
    assert told[-1] == 4 * SIZE


def spans(client, peer):
    return [(name, at) for name, at, _ in client.sent[peer]]


async def test_what_a_dying_peer_lacks_comes_from_the_others(client, tmp_path):
    client.together, client.dies_after = 2, {A: 3 * MB}
    job, whole, _ = await gathered(client, tmp_path, A, B, files=FILES)
    assert whole
    assert holds(tmp_path, *FILES)
    assert spans(client, A) == [(FILE.name, 0), (FILE.name, MB), (FILE.name, 2 * MB)]
    assert is_once(client, *FILES), "nothing is fetched again"
    assert job.lost == {A}


async def test_when_all_die_the_next_load_goes_on_where_they_were(client, tmp_path):
    client.dies_after = {A: MB, B: 2 * MB}
    client.together = 2
    _, whole, _ = await gathered(client, tmp_path, A, B, files=FILES[:2])
    assert not whole
    assert {path.suffix for path in tmp_path.iterdir()} == {".incomplete"}
    client.together = 1
    _, whole, told = await gathered(client, tmp_path, C, files=FILES[:2])
    assert whole
    assert told[0] == 3 * MB
    assert holds(tmp_path, *FILES[:2])
    assert is_once(client, *FILES[:2])


async def test_what_an_earlier_try_left_is_damaged(client, tmp_path):
    (tmp_path / f"{FILE.name}.incomplete").write_bytes(bytes(SIZE))
    _, whole, _ = await gathered(client, tmp_path, A)
    assert whole
    assert holds(tmp_path, FILE)
    assert is_once(client, FILE), "of A, which is not to blame"


async def test_a_peer_with_wrong_content_is_found_out_and_not_asked_again(client, tmp_path, caplog):
    client.contents, refused = {A: bytes(SIZE)}, set()
    _, whole, _ = await gathered(client, tmp_path, A, B, refused=refused)
    assert whole
    assert holds(tmp_path, FILE)
    assert {peer for peer, _, _ in refused} <= {"a"}
    assert f"expected is {FILE.digest}" in caplog.text

    (tmp_path / FILE.name).unlink()
    client.sent.clear()
    await gathered(client, tmp_path, A, B, refused=refused)
    assert set(client.sent) == {B}


async def test_wrong_content_after_a_part_of_another_peer_is_fetched_anew(client, tmp_path):
    client.contents, client.dies_after, refused = {A: bytes(SIZE)}, {A: MB}, set()
    _, whole, _ = await gathered(client, tmp_path, A, refused=refused)
    assert not whole
    _, whole, _ = await gathered(client, tmp_path, B, refused=refused)
    assert whole
    assert holds(tmp_path, FILE)
    assert spans(client, B)[0] == (FILE.name, MB)
    assert spans(client, B)[-6] == (FILE.name, 0)
    assert refused == set()


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
    assert is_once(client, FILE)


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
