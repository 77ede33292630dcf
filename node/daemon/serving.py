"""The parts that serve: rings, what the head decides, what peers may ask, the gateway, and the API in front of it."""

import socket
import time

from api.app import create_app
from api.responses.keeper import KEEPER
from node.cluster.allowlist import Allowlist
from node.cluster.commands import Commands
from node.cluster.control_service import ControlService
from node.cluster.head import Head
from node.core.logs import RecentLines
from node.core.pool import Pools
from node.daemon.facts import HostFacts
from node.daemon.models import Models
from node.daemon.network import Network
from node.engine.compute import Compute
from node.gateway.disk import Disk
from node.gateway.gateway import Gateway
from node.gateway.model_index import ModelIndex
from node.gateway.model_names import ModelNames
from node.gateway.monitor import Monitor
from node.gateway.open_models import OpenModels
from node.gateway.peers import Peers
from node.gateway.router import Router
from node.options import Options
from node.ring.lifecycle import Rings
from node.ring.limits import RingOptions
from node.ring.stored_kv import StoredKv
from node.text.sandbox import SandboxServer


class Serving:
    def __init__(
        self,
        options: Options,
        facts: HostFacts,
        network: Network,
        models: Models,
        compute: Compute,
        pools: Pools,
        sandboxes: SandboxServer,
        recent: RecentLines,
    ) -> None:
        """`recent`: the log of this process."""
        agent, client = network.agent, network.client
        self._agent, self._models = agent, models
        self.stored = None if options.kv_disk == 0 else StoredKv(models.kv, compute, pools.kv, models.copies)
        limits = RingOptions(
            usable=facts.memory.usable,
            max_queue=options.max_queue,
            max_batch=options.max_batch,
            step_timeout_s=options.step_timeout,
            guesses=options.guesses,
        )
        fetch, marked = models.of_shard, models.crashes.loading
        self.rings = Rings(agent, compute, client, fetch, models.grammars, limits, self.stored, marked)
        self.head = Head(
            agent, models.specs, context=options.context, max_sessions=options.max_sessions, max_rings=options.max_rings
        )
        self._names = ModelNames(agent, models.catalogue, pools.files)
        self._allowlist = Allowlist(agent, options.allow_models)
        self.commands = Commands(agent, self.head, client, self._allowlist, self._names.id_of, self._release)
        self.gateway = self._make_gateway(network, pools, sandboxes, recent)
        host = socket.gethostname()
        # Under which people open the page of this node, or of its cluster.
        names = (host, f"{host.removesuffix('.local')}.local", f"{options.cluster}.local", facts.tailnet_name)
        self.app = create_app(
            self.gateway,
            api_keys=options.api_keys,
            cors_origins=options.cors_origins,
            names=(*filter(None, names), *options.allow_hosts),
            open_api=options.open_api,
            body_limit=options.max_body,
            ollama_port=network.api.ollama_port,
        )
        kept = self.app[KEEPER]
        self.control = ControlService(
            agent, self.head, self._allowlist, models.specs, self.commands, recent, kept.answer, kept.own_events
        )

    def _make_gateway(self, network: Network, pools: Pools, sandboxes: SandboxServer, recent: RecentLines) -> Gateway:
        agent, models, rings, names, allowlist = self._agent, self._models, self.rings, self._names, self._allowlist
        catalogue, small_files, grammars = models.catalogue, models.files.of_tokenizer, models.grammars
        router = Router(agent, rings, network.client, self.head.want)
        opened = OpenModels(agent, names, allowlist, router, small_files, catalogue.layouts, sandboxes, pools)
        store, specs, files = models.kv.store, models.specs, models.files
        return Gateway(
            ModelIndex(agent, catalogue, names, allowlist, small_files, pools.files, int(time.time())),
            opened,
            router,
            grammars,
            models.pictures,
            self.commands,
            Disk(names, allowlist, store, specs, files, pools, rings.models, agent.touch, opened.forget),
            Monitor(agent, rings, router, pools, grammars, sandboxes, network.is_open, network.other_secret),
            Peers(agent, network.client, recent),
        )

    def _release(self, model: str) -> None:
        """Unload a model that a user does not want any more, and name it no more."""
        self._models.forget(model)
        self.rings.release(model)
        self._agent.touch()
