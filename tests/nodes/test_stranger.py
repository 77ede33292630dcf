"""A stranger in an open cluster that sends well-formed lies. It may disturb, but reads no file and crashes nothing."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from node import PROTOCOL
from node.core.errors import BadRequest, Incompatible, ModelNotFound, StaleFence
from node.core.frames import Frame, Open, Tensor
from node.core.generation import GenerateRequest
from node.core.models import HeldModel, ModelVersion
from node.core.nodes import Address, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.model.file_names import DESCRIPTION
from node.rpc.client import RpcClient
from tests.conftest import MODEL, PATIENCE_S, Cluster, until
from tests.nodes.test_bad_input import BUILTIN

pytestmark = pytest.mark.slow

OUTSIDE = ["../../../../etc", "/etc", "..", "~", ".ssh/id", "a/../../b", "a\x00b", "C:\\x"]
FILES = [
    "node.json",
    "lock",
    "../node.json",
    "/etc/passwd",
    "model.py",
    "../../config.json",
    ".ssh",
    "config.json/../x.py",
]
PRIVATE = ("notes.txt", "secrets.json", "chats.jsonl", "vocab.txt", "NOTICE")
"""Names in a model's folder that are not for peers; the last two only because they lead out of the folder."""


class Stranger:
    """A peer that claims to be head of a term far ahead, with more memory than all others."""

    def __init__(self, client: RpcClient, peer: Address, cluster: str) -> None:
        self.client, self.peer = client, peer
        self.info = NodeInfo("evil", 1, "evil", cluster, "0.1.0", PROTOCOL, ("127.0.0.1",), 1, 1)
        self.term = 1000

    async def say(self, *rings: Ring, preload: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> NodeReport:
        """Send one more placement; return the node's own report."""
        self.term += 1
        report = NodeReport(
            self.info,
            Memory(1 << 50, 1 << 50),
            term=self.term,
            head="evil",
            fence=Fence(self.term, 1),
            models=tuple(map(HeldModel, models)),
            preload=preload,
            min_stages=1000,
            peers=(PeerHint("nobody", ("127.0.0.1", "8.8.8.8"), 9),),
        )
        placement = Placement(Fence(self.term, 1), "evil", rings)
        return (await self.client.exchange(self.peer, Heartbeat(report, placement), 5)).report

    async def until_loaded(self, ring: Ring) -> str:
        """Send placements with the ring until the node has loaded its part or failed; return "ready" or the error."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for load in (await self.say(ring)).stages:
                    if load.ring == ring.id and load.state in ("ready", "failed"):
                        return load.error or load.state
                await asyncio.sleep(0.1)


async def lie(peer: Address, cluster: str) -> None:
    async with RpcClient() as client:
        evil = Stranger(client, peer, cluster)
        me = (await evil.say()).info.id
        revision = (await client.describe(peer, ModelVersion(MODEL))).version.revision
        for number, model in enumerate(OUTSIDE):
            if model.isprintable():  # else no heartbeat can carry it
                ring = Ring(f"r{number}", ModelVersion(model), (StageSpec(me, 0, 4), StageSpec("evil", 4, 8)), 100, 1)
                assert "model_not_found" in await evil.until_loaded(ring)
            with pytest.raises(ModelNotFound):
                await client.listing(peer, model, revision)
            with pytest.raises(ModelNotFound if model.isprintable() else Incompatible):
                await client.describe(peer, ModelVersion(model))
            with pytest.raises(ModelNotFound):
                await anext(client.read(peer, model, revision, "config.json", 0))
        for name in FILES:
            with pytest.raises(ModelNotFound):
                await anext(client.read(peer, MODEL, revision, name, 0))
        for offset in (100_000, 1 << 40, (1 << 64) - 1):
            with pytest.raises(BadRequest, match="so none is at"):
                await anext(client.read(peer, MODEL, revision, "config.json", offset))
        for number, other in enumerate(("../..", "/etc", "local-0", "a" * 40)):
            ring = Ring(
                f"o{number}", ModelVersion(MODEL, other), (StageSpec(me, 0, 4), StageSpec("evil", 4, 8)), 100, 1
            )
            assert "model_changed" in await evil.until_loaded(ring)
            with pytest.raises(ModelNotFound):
                await client.listing(peer, MODEL, other)
            with pytest.raises(ModelNotFound):
                await anext(client.read(peer, MODEL, other, "config.json", 0))
        far = Ring("far", ModelVersion(MODEL), (StageSpec("evil", 0, 60_000), StageSpec(me, 60_000, 65_000)), 100, 1)
        assert (await evil.until_loaded(far)) != "ready"
        stages = (StageSpec("evil", 0, 4), StageSpec(me, 4, 8))
        await nonsense_to_a_stage(evil, Ring("own", ModelVersion(MODEL, revision), stages, 100, 1))
        await evil.say(preload=tuple(OUTSIDE[:4]), models=("../x", MODEL))
        with pytest.raises(StaleFence):
            await anext(client.generate(peer, "no ring", GenerateRequest("r", MODEL, (1,), 1)))


async def nonsense_to_a_stage(evil: Stranger, ring: Ring) -> None:
    """For rings in which the stranger is the driver, so that its frames are accepted."""
    shapes = [(), (0,), (1, 1), (1, 0, 64), (2**31, 2**31, 2**31), (1, 1, 3)]
    for number, shape in enumerate(shapes):
        own = replace(ring, id=f"{ring.id}-{number}")
        assert await evil.until_loaded(own) == "ready"
        broken = asyncio.Event()
        link = evil.client.link(evil.peer, lambda reason, broken=broken: broken.set())
        tensor = Tensor("float32", shape, b"\x00" * 12)
        await link.send(Frame(own.id, own.fence, 0, (Open(1),), lane=1, tensors=(tensor,), sampled=True))
        await asyncio.wait_for(broken.wait(), PATIENCE_S)  # there is no next stage
        link.close()


def test_lies_of_a_stranger(cluster: Cluster) -> None:
    node = cluster.launch("--no-mdns", "--model", MODEL).started()
    before = cluster.ready(node)["nodes"][0]
    text = node.chat("Hello").text
    secrets = (cluster.directory / node.name / "node.json").read_text()
    asyncio.run(asyncio.wait_for(lie(Address(before["address"]), cluster.name), PATIENCE_S))
    assert node.process.poll() is None
    until(
        lambda: node.state_of(node) != "loading" and node.status()["head"] == before["id"],
        "it is its own head again",
    )
    cluster.ready(node)
    assert node.chat("Hello").text == text
    assert json.loads(secrets)["id"] == json.loads((cluster.directory / node.name / "node.json").read_text())["id"]
    assert "Traceback" not in node.written


async def take(peer: Address, model: str) -> dict[str, bytes]:
    """All that a peer may read of a model; a name that it does not list is refused."""
    async with RpcClient() as client:
        revision = (await client.describe(peer, ModelVersion(model))).version.revision
        listed = (await client.listing(peer, model, revision)).files
        for name in PRIVATE:
            with pytest.raises(ModelNotFound):
                await anext(client.read(peer, model, revision, name, 0))
        chunks = {file.name: client.read(peer, model, revision, file.name, 0) for file in listed}
        return {name: b"".join([chunk async for chunk, _ in found]) for name, found in chunks.items()}


def test_a_peer_reads_what_a_model_needs_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    folder = shutil.copytree(BUILTIN, tmp_path / "models" / "own")
    for name in PRIVATE:
        (tmp_path / name).write_text("secret")
        (tmp_path / name).chmod(0o600)
        (folder / name).symlink_to(tmp_path / name)
    (folder / PRIVATE[1]).unlink()
    (folder / PRIVATE[1]).write_text("secret")
    node = cluster.launch("--no-mdns", "--models-dir", str(folder.parent)).started()
    address = cluster.agreed(node)["nodes"][0]["address"]
    taken = asyncio.run(asyncio.wait_for(take(Address(address), "own"), PATIENCE_S))
    own = {path.name for path in BUILTIN.iterdir() if path.suffix in (".json", ".jinja", ".safetensors")} | {"LICENSE"}
    assert taken.keys() == {DESCRIPTION, *own}
    assert all(content == (folder / name).read_bytes() for name, content in taken.items() if name != DESCRIPTION)
