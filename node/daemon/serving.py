"""The parts that serve: rings, what the head decides, what peers may ask, and the gateway."""

import time
from ipaddress import ip_address

from node.cluster.allowlist import Allowlist
from node.cluster.control_service import ControlService
from node.cluster.draining import Draining
from node.cluster.head import Head
from node.cluster.loading import Loading
from node.core.logs import RecentLines
from node.core.pool import Pools
from node.daemon.models import Models
from node.daemon.network import Network
from node.engine.compute import Compute
from node.gateway.disk import Disk
from node.gateway.gateway import Gateway
from node.options import Options
from node.ring.lifecycle import Rings
from node.text.sandbox import SandboxServer


class Serving:
    def __init__(
        self,
        options: Options,
        usable: int,
        network: Network,
        models: Models,
        compute: Compute,
        pools: Pools,
        sandboxes: SandboxServer,
        recent: RecentLines,
    ) -> None:
        """`usable`: bytes of memory for models. `recent`: the log of this process."""
        self._agent = network.agent
        self._models = models
        agent, book, client = network.agent, network.book, network.client
        self.rings = Rings(
            agent,
            book,
            compute,
            client,
            models.files.of_shard,
            usable=usable,
            max_queue=options.max_queue,
            max_batch=options.max_batch,
            step_timeout_s=options.step_timeout,
            guesses=options.guesses,
            grammars=models.grammars,
        )
        self.head = Head(
            agent,
            models.specs,
            context=options.context,
            max_sessions=options.max_sessions,
            max_rings=options.max_rings,
        )
        self.loading = Loading(agent, self.head, book, client, self._release)
        draining = Draining(agent, self.head, book, client)
        allowlist = Allowlist(agent, options.allow_models)
        disk = Disk(models.catalogue, models.specs, models.files, pools, self.rings.models, agent.touch)
        self.control = ControlService(agent, self.head, allowlist, models.specs, draining, self.loading, recent)
        is_loopback = bool(options.host) and ip_address(options.host).is_loopback
        self.gateway = Gateway(
            agent,
            book,
            self.rings,
            client,
            models.catalogue,
            models.files.of_tokenizer,
            self.head.want,
            allowlist,
            draining,
            self.loading,
            disk,
            pools,
            models.grammars,
            sandboxes,
            recent,
            started_at=int(time.time()),
            open_cluster=not network.has_secret and not is_loopback,
            other_secret=network.other_secret,
        )

    def _release(self, model: str) -> None:
        """Unload a model that a user does not want any more, and name it no more."""
        self._models.forget(model)
        self.rings.release(model)
        self._agent.touch()
