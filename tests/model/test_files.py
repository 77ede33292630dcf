"""A node gets model files: interrupted downloads, and two downloads of the same model."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import ModelBroken, NotReady, PippinError
from node.core.model_files import File, Listing
from node.core.models import HeldModel, ModelVersion, Shard
from node.core.nodes import Address
from node.core.pool import Pools
from node.core.reports import Download
from node.model.catalogue import Catalogue
from node.model.file_names import DESCRIPTION, is_weights
from node.model.files import Files
from node.model.layouts import Layout
from node.model.stage_fetch import Others
from tests.model.test_stage_revisions import ID, NEW, Sender, made

SHARD = Shard(ModelVersion(ID, NEW), 1, 3)
SECOND = "model-00002-of-00003.safetensors"


class SlowHub:
    """Reports progress until it is stopped."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def fetch(self, model: str, file: str, progress: Any, *, revision: str, needed: int) -> Any:
        assert (model, file, revision) == (ID, SECOND, NEW)
        try:
            for done in range(1_000_000_000):
                progress(done)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.ended.set()


def described(directory: Path) -> Path:
    """A model without its weights."""
    made(directory)
    (directory / DESCRIPTION).write_bytes(Layout(directory).weights.to_json())
    for path in directory.iterdir():
        if is_weights(path.name):
            path.unlink()
    return directory


@pytest.fixture
def catalogue(tmp_path):
    return Catalogue(tmp_path / "builtin", [], tmp_path / "data", tmp_path / "cache")


async def test_a_download_tells_the_loop_and_is_broken_off_at_once(catalogue):
    hub, told, here, enough = SlowHub(), [], threading.get_ident(), asyncio.Event()

    def progress(download: Download) -> None:
        told.append((download.share, threading.get_ident() == here))
        if len(told) == 3:
            enough.set()

    described(catalogue.target(ID, NEW))
    files = Files(catalogue, hub, Others("me", SimpleNamespace(), list, lambda _: [], tuple), Pools())
    load = asyncio.create_task(files.of_shard(SHARD, False, progress))
    async with asyncio.timeout(30):
        await enough.wait()
        load.cancel()
        await asyncio.wait([load])
    assert load.cancelled()
    assert await asyncio.to_thread(hub.ended.wait, 30)
    assert isinstance(hub.error, NotReady)
    assert all(is_here for _, is_here in told), "from the loop's thread"
    assert [share for share, _ in told] == sorted(share for share, _ in told)


@pytest.mark.parametrize("name", ["tokenizer.json", SECOND])
async def test_a_load_ends_when_the_only_peer_sends_something_else_than_it_offered(catalogue, tmp_path, name):
    theirs = Catalogue(tmp_path / "none", [tmp_path / "theirs"], tmp_path / "their-data", tmp_path / "their-cache")
    made(tmp_path / "theirs" / "org" / "model")
    revision, sender, peer = theirs.whole(ID).revision, Sender(theirs), Address("10.0.0.1:1", "theirs")
    read = []

    class Client(SimpleNamespace):
        async def read(self, *span: Any, length: int = 0) -> Any:
            read.append(span[3])
            async for data, sha256 in sender.read(*span, length=length):
                yield data.replace(data[-1:], b"?") if span[3] == name else data, sha256

    client = Client(listing=sender.listing)
    files = Files(
        catalogue, SlowHub(), Others("me", client, lambda: [peer], lambda _: [(peer, revision)], tuple), Pools()
    )
    for _ in range(2):
        with pytest.raises(PippinError):
            async with asyncio.timeout(30):
                await files.of_shard(Shard(ModelVersion(ID, revision), 1, 3), False, lambda _: None)
    assert not (catalogue.target(ID, revision) / name).exists()
    assert read.count(name) <= 2, "once for its content, and once for its digest"


@pytest.mark.parametrize(
    ("name", "size"),
    [(DESCRIPTION, 120_000_000), ("config.json", 2**20 + 1), ("tokenizer.json", 65 * 2**20)],
)
async def test_a_small_file_that_is_larger_than_any_is_not_fetched(catalogue, name, size):
    sizes = dict.fromkeys((DESCRIPTION, "config.json", "tokenizer.json"), 100) | {name: size}
    listing = Listing(tuple(File(each, sizes[each], "0" * 64) for each in sizes))
    read = []

    class Client(SimpleNamespace):
        async def listing(self, *_: Any) -> Listing:
            return listing

        async def read(self, *span: Any, length: int = 0) -> Any:
            read.append(span)
            yield b"", ""

    peer = Address("10.0.0.1:1", "theirs")
    files = Files(catalogue, SlowHub(), Others("me", Client(), lambda: [peer], lambda _: [(peer, NEW)], tuple), Pools())
    for take in (files.of_shard(SHARD, False, lambda _: None), files.of_tokenizer(HeldModel(ID, NEW), peer)):
        with pytest.raises(ModelBroken, match=f"{name} has {size:,} bytes"):
            await take
    assert read == []


async def test_two_that_want_the_same_files_get_them_once(catalogue, tmp_path):
    theirs = Catalogue(tmp_path / "none", [tmp_path / "theirs"], tmp_path / "their-data", tmp_path / "their-cache")
    source = made(tmp_path / "theirs" / "org" / "model")
    revision = theirs.whole(ID).revision
    sender, read = Sender(theirs), []

    class Client(SimpleNamespace):
        async def read(self, peer: Address, model: str, revision: str, name: str, offset: int, length: int = 0) -> Any:
            read.append((name, offset))
            async for chunk in sender.read(peer, model, revision, name, offset, length):
                await asyncio.sleep(0.02)
                yield chunk

    peer = Address("10.0.0.1:1")
    client = Client(listing=sender.listing)
    files = Files(
        catalogue, SlowHub(), Others("me", client, lambda: [peer], lambda _: [(peer, revision)], tuple), Pools()
    )
    async with asyncio.timeout(60):
        (first, _), (second, _), small = await asyncio.gather(
            files.of_shard(Shard(ModelVersion(ID, revision), 1, 3), False, lambda _: None),
            files.of_shard(Shard(ModelVersion(ID, revision), 2, 3), False, lambda _: None),
            files.of_tokenizer(HeldModel(ID, revision), peer),
        )
    assert first == second == small
    assert len(read) == len(set(read)), "each file once"
    assert (first / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert not [*first.glob("*.incomplete"), *first.glob("*.parts")]
