"""A gateway has one process for the texts of each served model, whichever clients ask for it or hang up."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

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
from node.gateway.gateway import Gateway, _Opened
from node.text.sandbox import SandboxServer
from node.text.sandboxed_encoder import SandboxedEncoder
from tests.text.test_constraint import DEMO


def ring(model: str, revision: str = "1") -> Ring:
    return Ring(f"r-{model}", ModelVersion(model, revision), (StageSpec("n1", 0, 1),), 2048, 1)


@pytest.fixture
async def gateway(sandbox_server):
    async def files(model, peer):
        return DEMO

    peer = PeerView(NodeReport(NodeInfo("n1", 1, "n1", "home", "1", 1, (), 1, 2), Memory(1, 1)), NodeState.ALIVE)
    view = ClusterView("n1", 1, "n1", (peer,), Placement())
    placed = Placement(rings=(ring("a"), ring("b")))
    agent = SimpleNamespace(placement=placed, info=SimpleNamespace(id="n1", name="n1"), view=lambda: view)
    parts: dict[str, Any] = {
        "agent": agent,
        "book": SimpleNamespace(address_of=lambda node: None),
        "pools": Pools(),
        "tokenizer_files": files,
        "sandboxes": sandbox_server,
        "grammars": SimpleNamespace(is_stuck=False),
        "recent": RecentLines(),
        **dict.fromkeys(("rings", "client", "catalogue", "want", "allowlist", "draining", "loading", "disk")),
    }
    gateway = Gateway(**parts, started_at=1, open_cluster=False, other_secret=tuple)
    yield gateway
    await gateway.close()


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
async def test_who_hangs_up_while_a_tokenizer_is_read_leaves_no_process(gateway, processes):
    for _ in range(3):
        opening = asyncio.create_task(gateway._opened(ring("a")))
        await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])
    found = await gateway._opened(ring("a"))
    assert await gateway._opened(ring("a")) is found
    assert await SandboxedEncoder(found.processes, "a").encode("Hi", context=10, param="x")
    await until(lambda: processes() == 1)


async def test_a_model_that_is_served_no_more_or_anew_has_no_process(gateway, processes):
    for each in (ring("a"), ring("b"), ring("a", "2")):
        await gateway._opened(each)
    await until(lambda: processes() == 2)
    gateway._agent.placement = Placement(rings=(ring("c"),))
    found = await gateway._opened(ring("c"))
    assert await SandboxedEncoder(found.processes, "a").encode("Hi", context=10, param="x")
    await until(lambda: processes() == 1)


async def test_two_models_that_open_at_once_close_each_unused_one_once(gateway):
    class Unused:
        closed = 0

        async def close(self):
            self.closed += 1
            await asyncio.sleep(0)  # as when a client is still being answered

    unused = [Unused(), Unused()]
    gateway._open = {f"unused-{number}": _Opened("1", encoder, {}) for number, encoder in enumerate(unused)}
    await asyncio.gather(gateway._opened(ring("a")), gateway._opened(ring("b")))
    assert set(gateway._open) == {"a", "b"}
    assert [encoder.closed for encoder in unused] == [1, 1]


async def test_a_client_that_hangs_up_while_a_model_opens_leaves_no_unused_one_open(gateway):
    class Unused:
        def __init__(self):
            self.closing, self.go_on = asyncio.Event(), asyncio.Event()

        async def close(self):
            self.closing.set()
            await self.go_on.wait()

    first, second = Unused(), Unused()
    gateway._open = {"first": _Opened("1", first, {}), "second": _Opened("1", second, {})}
    opening = asyncio.create_task(gateway._opened(ring("a")))
    await first.closing.wait()
    opening.cancel()
    await asyncio.wait([opening])
    second.go_on.set()
    await gateway._opened(ring("a"))
    assert second.closing.is_set()


@pytest.mark.slow
async def test_a_node_without_sandboxes_is_of_no_use(gateway):
    assert gateway.health() == {"status": "ok", "node": "n1", "models": [], "warnings": []}
    gateway._sandboxes = server = SandboxServer()
    server.close()
    assert gateway.health() == {"status": "stuck", "stuck": ["sandbox"], "node": "n1", "models": [], "warnings": []}


async def test_health_names_the_warnings_that_are_problems(gateway):
    """An open cluster is none."""
    gateway._open_cluster = True
    refused = Placement(
        refused=(Refusal("m", "no_capacity", "m needs 9 GB."), Refusal("n", "no_capacity", "So does n."))
    )
    view = replace(gateway._agent.view(), placement=refused)
    gateway._agent.view = lambda: view
    assert {each["code"] for each in gateway.status()["warnings"]} == {"no-capacity", "open-cluster"}
    assert gateway.health() == {"status": "ok", "node": "n1", "models": [], "warnings": ["no-capacity"]}


async def test_the_log_of_this_node_and_of_others(gateway):
    gateway._recent.write("one\ntwo\n")
    for name in ("", "n1"):
        assert [part async for part in gateway.log(name, 1, follow=False)] == [["two"]]
    with pytest.raises(NodeNotFound, match="No node is named 'n2'"):
        gateway.log("n2", 1, follow=False)


async def test_health_names_the_threads_for_which_work_waits(gateway, monkeypatch):
    monkeypatch.setattr(Pools, "full", lambda _: [("download", 31.0)])
    assert gateway.health() == {"status": "full", "full": ["download"], "node": "n1", "models": [], "warnings": []}
