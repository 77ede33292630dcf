"""The revision of a served model: no part of another one gets into its rings."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from node.cluster.model_specs import ModelSpecs
from node.core.errors import HubUnavailable, ModelChanged, ModelNotFound, PeerUnavailable
from node.core.models import HeldModel, KvCost, ModelSpec, ModelVersion, Shard
from node.core.nodes import Address
from node.core.pool import Pools
from node.core.reports import StageReport, StageState
from node.core.rings import Placement, Ring, StageSpec
from node.gateway.router import Router
from node.model.catalogue import Catalogue
from node.model.file_names import DESCRIPTION
from node.model.files import Files
from node.model.layouts import Layout
from node.model.stage_fetch import Others
from tests.cluster.test_head import INFO, elected, planned
from tests.model.conftest import model_files
from tests.placement.test_placement import GB, again, model, node, placed, shape

OLD, NEW = "a" * 40, "b" * 40
ID = "org/model"


# --- placement ------------------------------------------------------------------------------------------------------


def of(revision: str) -> ModelSpec:
    return replace(model(), version=ModelVersion("m", revision))


def test_rings_carry_the_revision_and_those_of_another_one_do_not_stay():
    nodes = [node("a", 64 * GB), node("b", 64 * GB)]
    before = placed([of(OLD)], nodes)
    assert [ring.version.revision for ring in before.rings] == [OLD]
    assert again([of(OLD)], nodes, before).rings == before.rings
    after = again([of(NEW)], nodes, before)
    assert [ring.version.revision for ring in after.rings] == [NEW]
    assert not {ring.id for ring in after.rings} & {ring.id for ring in before.rings}


def test_layers_of_another_revision_in_memory_are_none():
    nodes = [node("a", 64 * GB), node("b", 63 * GB)]
    idle = Shard(ModelVersion("m", OLD), 0, 32)
    nodes[1] = replace(nodes[1], idle=(idle,))
    assert shape(placed([of(OLD)], nodes).rings[0]) == [("b", 0, 32)]
    assert shape(placed([of(NEW)], nodes).rings[0]) == [("a", 0, 32)]


def test_who_has_the_files_of_the_revision_is_preferred():
    nodes = [node("a", 64 * GB), node("b", 63 * GB)]
    nodes = [replace(each, models=(HeldModel("m", held),)) for each, held in zip(nodes, (OLD, NEW), strict=True)]
    assert shape(placed([of(OLD)], nodes).rings[0]) == [("a", 0, 32)]
    assert shape(placed([of(NEW)], nodes).rings[0]) == [("b", 0, 32)]


# --- the head -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_model_whose_files_changed_is_looked_at_anew(monkeypatch):
    async with elected(monkeypatch) as (head, agent, _):
        revisions = [NEW, OLD]

        async def find(name: str) -> ModelSpec:
            return ModelSpec(ModelVersion(name, revisions.pop()), (1, 1), 1, (KvCost(0), KvCost(0)), (1,), 1000)

        head._wanted._specs = SimpleNamespace(find=find)
        report, loads = agent._local_report(), []
        memory = replace(report.memory, total=1 << 40, usable=1 << 40)
        monkeypatch.setattr(agent, "_local_report", lambda: replace(report, memory=memory, stages=tuple(loads)))
        agent.touch()
        await asyncio.sleep(0)
        await head.want("org/m")
        (ring,) = agent.placement.rings
        assert ring.version.revision == OLD

        failed = f"{ModelChanged.code}: No node holds it any more."
        loads.append(StageReport(ring.id, Shard(ModelVersion("org/m", OLD), 0, 2), StageState.FAILED, error=failed))
        for _ in range(5):
            agent.touch()
            await planned(head, agent)
        (after,) = agent.placement.rings
        assert after.version.revision == NEW
        assert [spec.version.revision for spec in agent.placement.specs] == [NEW]


# --- which revision it is -------------------------------------------------------------------------------------------


class Peers:
    """Other nodes, each with one revision; those of `away` do not answer."""

    def __init__(self, *revisions: str, away: Sequence[str] = ()) -> None:
        self.revisions, self.away, self.asked = revisions, away, []

    def holders(self, _: str) -> list[tuple[Address, str]]:
        return [(Address(f"10.0.0.{n}:1"), revision) for n, revision in enumerate(self.revisions)]

    async def describe(self, peer: Address, version: ModelVersion) -> ModelSpec:
        self.asked.append(version.revision)
        if version.revision in self.away:
            raise PeerUnavailable("It is away.")
        return ModelSpec(version, (1,), 1, (KvCost(1),), (), 10)


class Hub:
    def metadata(self, *_: Any) -> Any:
        raise HubUnavailable("There is no hub.")


class Compute:
    unproven = False

    async def run(self, _make_plan: Any, _config: Any, _bytes: int, kv_bits: int, *, unproven: bool) -> Any:
        kv, more = (KvCost(1),) * 4, {"score_bytes": 0, "kv_bits": kv_bits}
        return SimpleNamespace(layers=4, kv=kv, cuts=(1, 2, 3), max_context=10, shared=(), **more)


@pytest.fixture
def catalogue(tmp_path):
    return Catalogue(tmp_path / "builtin", [tmp_path / "mine"], tmp_path / "data", tmp_path / "cache")


def made(directory):
    directory.mkdir(parents=True)
    for name, content in model_files().items():
        (directory / name).write_bytes(content)
    return directory


class Trials:
    async def check(self, config: Any, weight_bytes: int, kv_bits: int) -> None:
        """All run."""


def specs_of(catalogue, peers, kv_bits=0):
    return ModelSpecs(catalogue, Hub(), Compute(), peers, peers.holders, Pools(), kv_bits, None, None, Trials())


async def test_what_is_here_whole_goes_first_then_what_most_have_then_what_is_here_in_part(catalogue):
    peers = Peers(OLD, NEW, NEW)
    specs = specs_of(catalogue, peers)
    assert (await specs.find(ID)).version.revision == NEW, "two have it, and one the other"

    part = made(catalogue.target(ID, OLD))
    (part / DESCRIPTION).write_bytes(Layout(part).weights.to_json())
    (part / "model-00001-of-00003.safetensors").rename(part / "gone")
    assert (await specs.find(ID)).version.revision == NEW
    lonely = specs_of(catalogue, Peers())
    assert (await lonely.find(ID)).version.revision == OLD, "without the hub, too"
    away = specs_of(catalogue, Peers(NEW, away=[NEW]))
    assert (await away.find(ID)).version.revision == OLD

    (part / "gone").rename(part / "model-00001-of-00003.safetensors")
    assert (await specs.find(ID)).version.revision == OLD
    assert (await specs.local(ModelVersion(ID, OLD))).version.revision == OLD
    with pytest.raises(ModelNotFound):
        await specs.local(ModelVersion(ID, NEW))
    with pytest.raises(HubUnavailable):
        await specs_of(catalogue, Peers()).find("org/other")


async def test_the_head_says_in_how_many_bits_the_kv_is(catalogue):
    specs = specs_of(catalogue, Peers(NEW), kv_bits=8)
    assert (await specs.find(ID)).version.kv_bits == 8, "of another node"
    made(catalogue.target(ID, OLD))
    assert (await specs.find(ID)).version.kv_bits == 8, "of its own files"
    assert (await specs.local(ModelVersion(ID, OLD, 4))).version.kv_bits == 4, "as the asking head wants it"


# --- files ----------------------------------------------------------------------------------------------------------


class Sender:
    """A peer that serves one directory under one revision."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.files = Files(catalogue, Hub(), Others("sender", self, list, lambda _: [], tuple), Pools())

    async def listing(self, _: Address, name: str, revision: str) -> Any:
        return await self.files.listing(name, revision)

    async def read(self, _: Address, name: str, revision: str, file: str, offset: int, length: int = 0) -> Any:
        async for chunk in self.files.read(name, revision, file, offset, length):
            yield chunk


async def test_a_stage_takes_the_files_of_its_revision_only(catalogue, tmp_path):
    theirs = Catalogue(tmp_path / "none", [tmp_path / "theirs"], tmp_path / "their-data", tmp_path / "their-cache")
    made(tmp_path / "mine" / "org" / "model")
    source = made(tmp_path / "theirs" / "org" / "model")
    (source / "tokenizer.json").write_text('{"version": "theirs"}')
    mine, other = (each.whole(ID).revision for each in (catalogue, theirs))
    assert mine != other

    peer = Address("10.0.0.1:1")
    others = Others("me", Sender(theirs), lambda: [peer], lambda name: [(peer, other)] * (name == ID), tuple)
    files = Files(catalogue, Hub(), others, Pools())
    own, _ = await files.of_shard(Shard(ModelVersion(ID, mine), 1, 3), False, lambda _: None)
    assert own == tmp_path / "mine" / "org" / "model"
    fetched, weights = await files.of_shard(Shard(ModelVersion(ID, other), 1, 3), False, lambda _: None)
    assert fetched == catalogue.target(ID, other)
    assert (fetched / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert weights == Layout(source).weights
    assert await files.of_tokenizer(HeldModel(ID, mine), None) == own
    assert await files.of_tokenizer(HeldModel(ID, other), None) == fetched

    with pytest.raises(ModelChanged, match=f"found revision {mine}"):
        await files.of_shard(Shard(ModelVersion(ID, "local-0"), 1, 3), False, lambda _: None)
    (source / "tokenizer.json").write_text('{"version": "changed"}')
    with pytest.raises(ModelChanged):
        await files.of_shard(Shard(ModelVersion(ID, other), 0, 4), True, lambda _: None)
    with pytest.raises(ModelNotFound):
        await files.of_shard(Shard(ModelVersion("absent", "local-0"), 0, 4), True, lambda _: None)
    with pytest.raises(HubUnavailable):
        await Files(catalogue, Hub(), others, Pools()).of_shard(
            Shard(ModelVersion(ID, OLD), 1, 3), False, lambda _: None
        )


# --- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_goes_to_rings_of_its_revision_only(monkeypatch):
    rings = [
        Ring(f"r{revision}", ModelVersion("m", revision), (StageSpec("me", 0, 1),), 9, 1) for revision in (OLD, NEW)
    ]
    monkeypatch.setattr("node.gateway.router.usable_rings", lambda *_: rings)
    router = Router(SimpleNamespace(info=INFO, view=Placement), None, None, None)
    assert await router.wait_for_rings("m", 1, "a", OLD) == rings[:1]
    assert await router.wait_for_rings("m", 1, "a") == rings
    assert router.usable_rings("m", NEW) == rings[1:]
    with pytest.raises(ModelChanged, match="Send the request again"):
        await router.wait_for_rings("m", 1, "a", "local-0")
