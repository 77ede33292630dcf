"""The parts that have to do with models as files: on disk, on their way, as text and as grammars; and those that the user names."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node.cluster.agent import Agent
from node.cluster.model_specs import ModelSpecs
from node.core.errors import PippinError
from node.core.models import DraftChoice, Shard
from node.core.pool import Pools
from node.core.reports import Download
from node.daemon.network import Network
from node.engine.compute import Compute
from node.engine.trials import Trials
from node.host.crashes import Crashes
from node.kv.copies import CopyKeeper, KvCopies, keeper_of
from node.kv.exchange import KvExchange
from node.kv.store import KvStore
from node.model.catalogue import Catalogue, lm_studio
from node.model.config import read_config
from node.model.files import Files
from node.model.hub import Hub
from node.model.json_parser import JsonParser
from node.model.layouts import Layouts
from node.model.stage_fetch import Others
from node.model.weights import Weights
from node.options import Options
from node.text.grammars import Grammars
from node.text.pictures import Pictures
from node.text.sandbox import SandboxServer
from node.text.sandboxed_parser import SandboxedParser

log = logging.getLogger(__name__)

BUILTIN = Path(__file__).parent.parent / "builtin"


class Models:
    def __init__(
        self,
        options: Options,
        directory: Path,
        network: Network,
        compute: Compute,
        pools: Pools,
        sandboxes: SandboxServer,
    ) -> None:
        """`directory`: the node's data directory."""
        self._options = options
        self._pools = pools
        agent, client = network.agent, network.client
        self._parser = SandboxedParser(sandboxes)
        layouts = Layouts(JsonParser(self._parser))
        hub = Hub(layouts=layouts)
        folders = (*options.models_dirs, *lm_studio(Path.home()))
        self.catalogue = Catalogue(BUILTIN, folders, directory, layouts=layouts)
        others = Others(agent.info.id, client, agent.others, agent.holders, lambda: agent.placement.rings)
        self.files = Files(self.catalogue, hub, others, pools)
        known = [read_config(path.parent) for path in BUILTIN.glob("*/config.json")]
        self.trials = Trials(sandboxes, known, unproven=options.unproven)
        self.specs = ModelSpecs(
            self.catalogue,
            hub,
            compute,
            client,
            agent.holders,
            pools,
            options.kv_bits,
            self.files.of_tokenizer,
            sandboxes,
            self.trials,
        )
        store = KvStore(directory / "kv", options.kv_disk)
        self.kv = KvExchange(store, pools.offers, client, agent.with_kv, agent.is_member)
        self.copies = KvCopies(self.kv, partial(_keeper, agent, options.kv_copies))
        self.crashes = Crashes(directory)
        self.grammars = Grammars(sandboxes, options.grammar_timeout)
        self.pictures = Pictures(sandboxes)
        self.preload: tuple[str, ...] = ()
        """Models of --model that the user still wants, and in `drafts` the pairs of --draft."""
        self.drafts: tuple[DraftChoice, ...] = ()
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.grammars.start()
        # On its own: a disk may hang.
        self._opening = asyncio.create_task(self._pools.kv.run(self.kv.store.open), name="KV on the disk")
        self.preload, self.drafts = await self._pools.files.run(self._named)

    async def end(self) -> None:
        await self.grammars.end()
        await self.pictures.end()
        await self._parser.end()

    async def of_shard(self, shard: Shard, ends: bool, progress: Callable[[Download], None]) -> tuple[Path, Weights]:
        """As Files.of_shard. Raises ModelCrashes, too, as the model is run next."""
        directory, weights = await self.files.of_shard(shard, ends, progress)
        config = await self._pools.files.run(read_config, directory)
        await self.trials.check(config, weights.total_bytes, shard.version.kv_bits)
        return directory, weights

    def forget(self, model: str) -> None:
        """Until its next start, the node does not name this model."""
        self.preload = tuple(named for named in self.preload if named != model)

    def _named(self) -> tuple[tuple[str, ...], tuple[DraftChoice, ...]]:
        """The models of --model and --draft. May search the disk."""
        drafts = [
            DraftChoice(self._full_id(model, "--draft"), self._full_id(draft, "--draft"))
            for model, draft in self._options.drafts
        ]
        return tuple(self._full_id(model, "--model") for model in self._options.models), tuple(drafts)

    def _full_id(self, model: str, option: str) -> str:
        """Id of a model named by an option; the name as it is if no such model is found."""
        try:
            return self.catalogue.find(model)
        except (PippinError, OSError) as error:
            log.error("%s %s: %s", option, model, error)
            return model


def _keeper(agent: Agent, copies: str, before: str) -> CopyKeeper | None:
    """See KvCopies. `copies`: of the options."""
    if copies == "never":
        return None
    return keeper_of(agent.info.id, agent.alive(), agent.book.address_of, before, wireless=copies == "always")
