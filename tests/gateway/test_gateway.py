"""A gateway has one process for the texts of each served model, whichever clients ask for it or hang up."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import psutil
import pytest

from node.core.errors import NodeNotFound
from node.core.logs import RecentLines
from node.core.models import ModelVersion
from node.core.nodes import Memory, NodeInfo
from node.core.pool import Pools
from node.core.reports import NodeReport
from node.core.rings import Placement, Refusal, Ring, StageSpec
from node.core.views import ClusterView, NodeState, PeerView
from node.gateway.monitor import Monitor
from node.gateway.open_models import OpenModels, _Opened
from node.gateway.peers import Peers
from node.model.layouts import Layouts
from node.text.sandbox import SandboxServer
from node.text.sandboxed_encoder import SandboxedEncoder
from tests.text.test_constraint import DEMO


def ring(model: str, revision: str = "1") -> Ring:
    return Ring(f"r-{model}", ModelVersion(model, revision), (StageSpec("n1", 0, 1),), 2048, 1)


@pytest.fixture
def agent():
    peer = PeerView(NodeReport(NodeInfo("n1", 1, "n1", "home", "1", 1, (), 1, 2), Memory(1, 1)), NodeState.ALIVE)
    view = ClusterView("n1", 1, "n1", (peer,), Placement())
    placed = Placement(rings=(ring("a"), ring("b")))
    book = SimpleNamespace(address_of=lambda node: None)
    return SimpleNamespace(placement=placed, info=SimpleNamespace(id="n1", name="n1"), view=lambda: view, book=book)


@pytest.fixture
async def opened(agent, sandbox_server):
    async def files(model, peer):
        return DEMO

    opened = OpenModels(agent, None, None, None, files, Layouts(), sandbox_server, Pools())
    yield opened
    await opened.close()


def monitor(agent, sandboxes, *, open_cluster=False) -> Monitor:
    grammars = SimpleNamespace(is_stuck=False)
    return Monitor(agent, None, None, Pools(), grammars, sandboxes, open_cluster=open_cluster, other_secret=tuple)


@pytest.fixture
def processes(sandbox_server):
    """Count the new processes."""
    server = psutil.Process(sandbox_server._process.pid)
    before = {each.pid for each in server.children()}

    def processes() -> int:
        new = [each for each in server.children() if each.pid not in before]
        return sum(each.status() != psutil.STATUS_ZOMBIE for each in new)

    return processes


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_who_hangs_up_while_a_tokenizer_is_read_leaves_no_process(opened, processes):
    for _ in range(3):
        opening = asyncio.create_task(opened._opened(ring("a")))
        await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])
    found = await opened._opened(ring("a"))
    assert await opened._opened(ring("a")) is found
    assert await SandboxedEncoder(found.processes, "a").encode("Hi", context=10, param="x")
    await until(lambda: processes() == 1)


async def test_a_model_that_is_served_no_more_or_anew_has_no_process(opened, agent, processes):
    for each in (ring("a"), ring("b"), ring("a", "2")):
        await opened._opened(each)
    await until(lambda: processes() == 2)
    agent.placement = Placement(rings=(ring("c"),))
    found = await opened._opened(ring("c"))
    assert await SandboxedEncoder(found.processes, "a").encode("Hi", context=10, param="x")
    await until(lambda: processes() == 1)


async def test_a_model_whose_files_were_deleted_is_opened_by_those_that_are_fetched_then(opened, processes):
    asked = []

    async def files(model, peer):
        asked.append(model.id)
        return DEMO

    opened.tokenizer_files = files
    found = await opened._opened(ring("a"))
    assert await opened._opened(ring("a")) is found
    await opened.forget("a")
    await opened.forget("never opened")
    assert await opened._opened(ring("a")) is not found
    assert asked == ["a", "a"]
    await until(lambda: processes() == 1)


async def test_a_model_is_opened_with_the_form_of_its_pictures(opened, picture_model):
    assert (await opened._opened(ring("a"))).pictures is None

    async def files(model, peer):
        return picture_model

    opened.tokenizer_files = files
    found = await opened._opened(ring("b"))
    assert found.pictures.vocabulary == 2056
    assert found.processes.tokenizer.pictures.place == 2053


async def test_a_conversion_for_text_only_is_opened_without_pictures(opened, text_only_model):
    opened.tokenizer_files = AsyncMock(return_value=text_only_model)
    assert (await opened._opened(ring("a"))).pictures is None


async def test_two_models_that_open_at_once_close_each_unused_one_once(opened):
    class Unused:
        closed = 0

        async def close(self):
            self.closed += 1
            await asyncio.sleep(0)  # as when a client is still being answered

    unused = [Unused(), Unused()]
    opened._open = {f"unused-{number}": _Opened("1", encoder, {}, None) for number, encoder in enumerate(unused)}
    await asyncio.gather(opened._opened(ring("a")), opened._opened(ring("b")))
    assert set(opened._open) == {"a", "b"}
    assert [encoder.closed for encoder in unused] == [1, 1]


async def test_a_client_that_hangs_up_while_a_model_opens_leaves_no_unused_one_open(opened):
    class Unused:
        def __init__(self):
            self.closing, self.go_on = asyncio.Event(), asyncio.Event()

        async def close(self):
            self.closing.set()
            await self.go_on.wait()

    first, second = Unused(), Unused()
    opened._open = {"first": _Opened("1", first, {}, None), "second": _Opened("1", second, {}, None)}
    opening = asyncio.create_task(opened._opened(ring("a")))
    await first.closing.wait()
    opening.cancel()
    await asyncio.wait([opening])
    second.go_on.set()
    await opened._opened(ring("a"))
    assert second.closing.is_set()


@pytest.mark.slow
async def test_a_node_without_sandboxes_is_of_no_use(agent, sandbox_server):
    assert monitor(agent, sandbox_server).health() == {"status": "ok", "node": "n1", "models": [], "warnings": []}
    server = SandboxServer()
    server.close()
    assert monitor(agent, server).health() == {
        "status": "stuck",
        "stuck": ["sandbox"],
        "node": "n1",
        "models": [],
        "warnings": [],
    }


async def test_health_names_the_warnings_that_are_problems(agent, sandbox_server):
    """An open cluster is none."""
    refused = Placement(
        refused=(Refusal("m", "no_capacity", "m needs 9 GB."), Refusal("n", "no_capacity", "So does n."))
    )
    view = replace(agent.view(), placement=refused)
    agent.view = lambda: view
    opened = monitor(agent, sandbox_server, open_cluster=True)
    assert {each["code"] for each in opened.status()["warnings"]} == {"no-capacity", "open-cluster"}
    assert opened.health() == {"status": "ok", "node": "n1", "models": [], "warnings": ["no-capacity"]}


async def test_the_log_of_this_node_and_of_others(agent):
    recent = RecentLines()
    peers = Peers(agent, None, recent)
    recent.write("one\ntwo\n")
    for name in ("", "n1"):
        assert [part async for part in peers.log(name, 1, follow=False)] == [["two"]]
    with pytest.raises(NodeNotFound, match="No node is named 'n2'"):
        peers.log("n2", 1, follow=False)


async def test_health_names_the_threads_for_which_work_waits(agent, sandbox_server, monkeypatch):
    monkeypatch.setattr(Pools, "full", lambda _: [("download", 31.0)])
    assert monitor(agent, sandbox_server).health() == {
        "status": "full",
        "full": ["download"],
        "node": "n1",
        "models": [],
        "warnings": [],
    }
