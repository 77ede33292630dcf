"""The models that requests have named, with the processes that tokenize their texts."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.wanted_model import OPEN_WAIT_S
from node.core.clock import now
from node.core.errors import ModelBroken
from node.core.models import HeldModel
from node.core.pool import Pools
from node.core.rings import Ring
from node.gateway.model_index import TokenizerFiles
from node.gateway.model_names import ModelNames
from node.gateway.router import Router
from node.model.config import read_sampling
from node.model.layouts import Layouts
from node.model.picture_form import PictureForm
from node.text.sandbox import SandboxServer
from node.text.sandboxed_encoder import OpenModel, SandboxedEncoder, TokenizerProcesses


class _Opened(NamedTuple):
    revision: str
    processes: TokenizerProcesses
    sampling: Mapping[str, float]
    """What the model's authors propose."""
    pictures: PictureForm | None


@dataclass(slots=True)
class OpenModels:
    agent: Agent
    names: ModelNames
    allowlist: Allowlist
    router: Router
    tokenizer_files: TokenizerFiles
    layouts: Layouts
    sandboxes: SandboxServer
    pools: Pools
    _open: dict[str, _Opened] = field(default_factory=dict)
    """By model."""
    _broken: dict[HeldModel, tuple[float, str]] = field(default_factory=dict)
    """Time and reason of a tokenizer's failure, by model and revision."""
    _opening: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def open(self, name: str, client: str) -> OpenModel:
        """Open a model for a client. Waits until a ring of the model is ready.

        Raises ModelNotFound, ModelNotAllowed, NoCapacity, ModelBroken, …, and NotReady after `OPEN_WAIT_S`.
        """
        model = await self.names.id_of(name)
        self.allowlist.check(model)
        ring = (await self.router.wait_for_rings(model, OPEN_WAIT_S, client))[0]
        opened = await self._opened(ring)
        sampling = {**opened.sampling, **self.names.preset(model)}
        encoder = SandboxedEncoder(opened.processes, client)
        return OpenModel(model, ring.context, encoder, ring.version.revision, sampling, opened.pictures)

    def loading(self, name: str) -> str:
        """How far the load of a model is, for people; empty if it is not loading."""
        return " ".join(self.router.loading(self.names.match(name) or name))

    async def _opened(self, ring: Ring) -> _Opened:
        async with self._opening.setdefault(ring.model, asyncio.Lock()):
            failed_at, why = self._broken.get(ring.version.files, (0.0, ""))
            if why and now() - failed_at < 60.0:  # a try may take 10 s
                raise ModelBroken(why)
            opened = self._open.get(ring.model)
            if opened is None or opened.revision != ring.version.revision:
                opened = await self._replace(ring)
            try:
                if not opened.processes.is_open:
                    await opened.processes.open()
            except ModelBroken as error:
                self._broken[ring.version.files] = now(), error.message
                raise
            return opened

    async def _replace(self, ring: Ring) -> _Opened:
        """Make the processes of a ring's model. Close those of its other revision, and of models without a ring."""
        address = self.agent.book.address_of(ring.driver)
        directory = await self.tokenizer_files(ring.version.files, address)
        served = {each.model for each in self.agent.placement.rings}
        for unused in [model for model in self._open if model == ring.model or model not in served]:
            if entry := self._open.pop(unused, None):  # another model that opens may have closed it meanwhile
                await entry.processes.close()
        sampling = await self.pools.files.run(read_sampling, directory)
        pictures = await self.pools.files.run(self.layouts.picture_form, directory)
        processes = TokenizerProcesses(self.sandboxes, directory, self.pools.texts)
        self._open[ring.model] = opened = _Opened(ring.version.revision, processes, sampling, pictures)
        return opened

    async def forget(self, model: str) -> None:
        """Close a model whose files were deleted, as its next process could not read them. Who asks for it next has them fetched."""
        async with self._opening.setdefault(model, asyncio.Lock()):
            if opened := self._open.pop(model, None):
                await opened.processes.close()

    async def close(self) -> None:
        """End the processes of the open models."""
        for opened in self._open.values():
            await opened.processes.close()
