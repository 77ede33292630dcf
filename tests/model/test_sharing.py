"""Nodes that lack the same files: each leaves the hub once, and the others take it from the node that has it."""

import asyncio

import pytest

from node.core.errors import HubUnavailable, PeerUnavailable
from node.core.models import ModelVersion, Shard
from node.core.nodes import Address
from node.core.pool import Pools
from node.core.rings import Ring, StageSpec
from node.model import stage_fetch
from node.model.catalogue import Catalogue
from node.model.files import Files
from node.model.hub import Hub
from node.model.offers import turn
from node.model.stage_fetch import Others

ID = "org/model"
FIRST, SECOND, THIRD = (f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))
UNREACHABLE = "http://127.0.0.1:9"
TURN_S = 1.0


class Client:
    """Calls the other nodes of this process; those of `dead` do not answer."""

    def __init__(self):
        self.files, self.dead, self.rings = {}, set(), []

    async def listing(self, peer, model, revision):
        if peer in self.dead:
            raise PeerUnavailable(f"{peer} is dead.")
        return await self.files[peer].listing(model, revision)

    async def read(self, peer, model, revision, name, offset, length=0):
        async for chunk in self.files[peer].read(model, revision, name, offset, length):
            yield chunk


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(stage_fetch, "LOOK_AGAIN_S", 0.2)
    monkeypatch.setattr(stage_fetch, "TURN_S", TURN_S)


@pytest.fixture
def node(tmp_path, fake_hub):
    client = Client()

    def make(name, endpoint="", token="good"):
        own = Address(f"{name}:1", name)
        catalogue = Catalogue(tmp_path / "none", [], tmp_path / name / "data", tmp_path / name / "cache")
        hub = Hub(endpoint=endpoint or fake_hub.url, token=token, cache_dir=tmp_path / name / "cache")
        others = Others(
            name, client, lambda: [peer for peer in client.files if peer != own], lambda _: [], lambda: client.rings
        )
        client.files[own] = Files(catalogue, hub, others, Pools())
        return client.files[own]

    make.client = client
    return make


@pytest.fixture
def commit(fake_hub):
    return fake_hub.commit(fake_hub.repos[ID])


def check(fake_hub, directory, *names):
    for name in ("config.json", "tokenizer.json", *names):
        assert (directory / name).read_bytes() == fake_hub.repos[ID][name]


async def loaded(*loads):
    async with asyncio.timeout(30):
        return [directory for directory, _ in await asyncio.gather(*loads)]


def whole(files, commit):
    return files.of_shard(Shard(ModelVersion(ID, commit), 0, 4), True, lambda _: None)


def rings(commit, *rings):
    """Rings of the stages (node, start, end)."""
    return [Ring("ring", ModelVersion(ID, commit), tuple(StageSpec(*stage) for stage in ring), 1, 1) for ring in rings]


def replicas(commit, names):
    return rings(commit, *([(name, 0, 4)] for name in names))


def in_turn(commit, names, file=FIRST):
    """The names of nodes that need a file, the first one first."""
    return sorted(names, key=lambda name: turn(name, set(names), commit, file))


async def small_files(*nodes, commit):
    """Have them on the nodes' disks, as a load of a node without the hub does not begin without any."""
    for each in nodes:
        await asyncio.to_thread(each._hub.metadata, ID, commit)


async def test_all_want_all(node, fake_hub, commit):
    nodes = [node(name) for name in "cab"]
    node.client.rings = replicas(commit, "abc")
    for directory in await loaded(*(whole(each, commit) for each in nodes)):
        check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]


async def test_a_node_alone_waits_for_nobody(node, fake_hub, commit, monkeypatch):
    monkeypatch.setattr(stage_fetch, "LOOK_AGAIN_S", 1000)
    monkeypatch.setattr(stage_fetch, "TURN_S", 1000)
    node.client.rings = replicas(commit, "a")
    await loaded(whole(node("a"), commit))
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]


async def test_stages_with_files_in_common(node, fake_hub, commit):
    one, two = node("a"), node("b")
    node.client.rings = rings(commit, [("a", 0, 2), ("b", 2, 4)])
    first, second = await loaded(
        one.of_shard(Shard(ModelVersion(ID, commit), 0, 2), True, lambda _: None),
        two.of_shard(Shard(ModelVersion(ID, commit), 2, 4), False, lambda _: None),
    )
    check(fake_hub, first, FIRST, SECOND, THIRD)
    check(fake_hub, second, SECOND, THIRD)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]


async def test_pulls_that_begin_at_the_same_moment(node, fake_hub, commit):
    for directory in await loaded(*(whole(node(name), commit) for name in "abc")):
        check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]


async def test_a_pull_leaves_what_another_one_fetches(node, fake_hub, commit):
    one, two = node("a"), node("b")
    fake_hub.stalls[FIRST] = 100
    first = asyncio.create_task(whole(one, commit))
    await until(lambda: FIRST not in fake_hub.stalls)
    second = asyncio.create_task(whole(two, commit))
    await until(lambda: len(fake_hub.fetched()) == 3)
    fake_hub.stalled.set()
    for directory in await loaded(first, second):
        check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert sorted(set(fake_hub.fetched())) == [FIRST, SECOND, THIRD]


async def test_what_came_from_the_hub_and_from_a_node_is_used_together(node, fake_hub, commit):
    one, two = node("a"), node("b")
    await loaded(one.of_shard(Shard(ModelVersion(ID, commit), 1, 3), False, lambda _: None))
    await loaded(two.of_shard(Shard(ModelVersion(ID, commit), 0, 1), False, lambda _: None))
    (directory,) = await loaded(whole(two, commit))
    check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]
    digests = {file.name: file.digest for file in (await two.listing(ID, commit)).files}
    assert all(len(digests[name]) == 64 for name in (FIRST, SECOND, THIRD)), "the hub's, also of what came from a node"


async def test_a_node_without_the_hub_gives_way_and_takes_what_others_download(node, fake_hub, commit):
    cut_off, other = node("a", UNREACHABLE), node("b")
    node.client.rings = replicas(commit, "ab")
    await small_files(other, commit=commit)
    for directory in await loaded(whole(cut_off, commit), whole(other, commit)):
        check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]


async def test_without_a_token_the_next_one_fetches(node, fake_hub, commit):
    fake_hub.gated.add(ID)
    first, *others = in_turn(commit, "abc")
    stranger, nodes = node(first, token="bad"), [node(name) for name in others]
    node.client.rings = replicas(commit, "abc")
    await small_files(nodes[0], commit=commit)
    for directory in await loaded(*(whole(each, commit) for each in (stranger, *nodes))):
        check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]


async def test_a_node_without_a_token_waits_for_one_that_is_busy_with_other_files(node, fake_hub, commit):
    fake_hub.gated.add(ID)
    stranger, other = node("a", token="bad"), node("b")
    node.client.rings = replicas(commit, "ab")
    await small_files(other, commit=commit)
    fake_hub.stalls = dict.fromkeys((FIRST, SECOND, THIRD), 100)
    loads = [asyncio.create_task(whole(other, commit))]
    await until(lambda: len(fake_hub.stalls) < 3)  # a file stalls; the stranger is not to wait for its turns in vain
    loads.append(asyncio.create_task(whole(stranger, commit)))
    fake_hub.stalls.clear()
    await asyncio.sleep(4 * TURN_S)
    assert not any(load.done() for load in loads)
    fake_hub.stalled.set()
    for directory in await loaded(*loads):
        check(fake_hub, directory, FIRST, SECOND, THIRD)


async def test_the_first_one_never_begins(node, fake_hub, commit):
    """Its memory is not free yet, say, or it has the file's layers in memory."""
    idle, busy = (node(name) for name in in_turn(commit, "ab"))
    node.client.rings = replicas(commit, "ab")
    (directory,) = await loaded(whole(busy, commit))
    check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert not idle._others.fetching


async def test_a_slow_one_is_waited_for_and_its_other_files_are_not(node, fake_hub, commit):
    slow, quick = (node(name) for name in in_turn(commit, "ab"))
    node.client.rings = replicas(commit, "ab")
    await small_files(slow, quick, commit=commit)
    for file in (FIRST, SECOND, THIRD):
        if in_turn(commit, "ab", file) == in_turn(commit, "ab"):
            fake_hub.stalls[file] = 100
    stalls = len(fake_hub.stalls)
    first = asyncio.create_task(whole(slow, commit))
    await until(lambda: len(fake_hub.stalls) < stalls)
    fake_hub.stalls.clear()
    (held,) = fake_hub.fetched()
    second = asyncio.create_task(whole(quick, commit))
    await until(lambda: len(fake_hub.fetched()) == 3)
    assert sorted(fake_hub.fetched()) == [FIRST, SECOND, THIRD]
    await asyncio.sleep(2 * TURN_S)
    assert not second.done()
    fake_hub.stalled.set()
    for directory in await loaded(first, second):
        check(fake_hub, directory, FIRST, SECOND, THIRD)
    assert set(fake_hub.fetched()[3:]) <= {held}, "the hub closed that one's connection"


async def test_without_hub_and_holder_it_fails(node, fake_hub, commit):
    cut_off, other = node("a", UNREACHABLE), node("b")
    await loaded(other.of_shard(Shard(ModelVersion(ID, commit), 1, 3), False, lambda _: None))
    with pytest.raises(HubUnavailable):
        await loaded(whole(cut_off, commit))


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.01)


async def test_when_the_node_that_downloads_dies_another_one_does(node, fake_hub, commit, caplog):
    caplog.set_level("INFO")
    one, two = (node(name) for name in in_turn(commit, "ab"))
    node.client.rings = replicas(commit, "ab")
    fake_hub.stalls[FIRST] = 100
    first = asyncio.create_task(whole(one, commit))
    await until(lambda: FIRST not in fake_hub.stalls)
    second = asyncio.create_task(whole(two, commit))
    (peer,) = (peer for peer, files in node.client.files.items() if files is one)
    await until(lambda: any("waiting for other nodes" in line for line in caplog.messages))
    node.client.dead.add(peer)
    (directory,) = await loaded(second)
    check(fake_hub, directory, FIRST, SECOND, THIRD)
    first.cancel()
    fake_hub.stalled.set()
    await asyncio.wait([first])
