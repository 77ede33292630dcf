"""One node: builds its parts, starts them in order, and stops them in reverse order."""

import asyncio
import contextlib
import logging
import math
import sys
from dataclasses import replace
from functools import partial

from node.cluster.readiness import is_needed
from node.core.addresses import join_host_port
from node.core.clock import GRID_S
from node.core.health import gpu_failed
from node.core.logs import RecentLines
from node.core.models import Alias, Preset
from node.core.pool import Pools
from node.core.reports import Issue, NodeReport
from node.core.warning_codes import Code
from node.daemon.facts import HostFacts
from node.daemon.models import Models
from node.daemon.network import Network
from node.daemon.serving import Serving
from node.daemon.upkeep import Upkeep
from node.engine.compute import Compute
from node.engine.watchdog import Watchdog
from node.host.descriptors import DescriptorShortage
from node.host.examination import examine
from node.host.failures import note_end
from node.host.identity import DataDirectory
from node.host.shutdown import exit_within, on_signals
from node.members.discovery import Discovery
from node.options import Options
from node.ring.progress_log import tell_progress
from node.text.sandbox import SandboxServer

log = logging.getLogger(__name__)

FIRST_MODEL = "llama-3.2-1b"
"""Suggested to those who name none: a small one, which any Mac can hold."""
FINISH_S = 30.0
"""Timeout after the first Ctrl-C for the requests in flight, here and in this node's rings."""
EXIT_S = 5.0
"""Timeout after that, at which the process exits even if threads hang: a goodbye to peers takes a second."""
EXIT_LOST = 70
"""Exit code of a node whose compute thread is stuck, or whose GPU is lost: EX_SOFTWARE of sysexits.h."""


class Daemon:
    """Create it inside a running event loop; `run` returns when the node has been told to stop."""

    def __init__(
        self, options: Options, data: DataDirectory, facts: HostFacts, sandboxes: SandboxServer, recent: RecentLines
    ) -> None:
        """`recent`: the log of this process. Raises PortTaken, SecretUnusable."""
        self._options = options
        self._data = data
        self._facts = facts
        self._stop = asyncio.Event()
        self._quit = asyncio.Event()
        self._exit_code = 0
        self._pools = pools = Pools()
        self._compute = Compute(wire=options.wire, unproven=options.unproven)
        self._watchdog = Watchdog(self._compute, options.step_timeout)
        self._network = Network(options, data, facts, self._report)
        self._agent = self._network.agent
        self._models = Models(options, data.path, self._network, self._compute, pools, sandboxes)
        self._serving = Serving(options, facts, self._network, self._models, self._compute, pools, sandboxes, recent)
        self._upkeep = Upkeep(pools.upkeep, self._models.catalogue)

    async def run(self) -> int:
        """Run the node. Returns the exit code."""
        asyncio.get_running_loop().set_exception_handler(DescriptorShortage())
        on_signals(self._stop.set, self._quit.set)
        self._compute.start()
        async with self._network.client:
            try:
                await self._run_parts()
            except ExceptionGroup:
                log.exception("this node ends, as a part of it failed")
                self._exit_code = 1
            finally:
                exit_within(EXIT_S, self._exit_code)
                await self._network.rpc.stop()
                self._compute.stop()
                await self._serving.gateway.open_models.close()
                await self._models.end()
        log.info("stopped")
        return self._exit_code

    async def _run_parts(self) -> None:
        search = await self._upkeep.begin()
        await self._models.start()
        kv = self._models.kv if self._serving.stored else None
        await self._network.rpc.start(self._serving.control, self._serving.rings, self._models.files, kv)
        discovery = self._network.discovery if self._options.mdns else None
        async with asyncio.TaskGroup() as group:
            parts = [
                self._agent.run(),
                self._network.heartbeats.run(self._options.peers),
                self._serving.rings.run(),
                tell_progress(self._serving.rings.reports, bars=self._options.log_file is None and sys.stderr.isatty()),
                self._serving.head.run(),
                self._upkeep.keep_catalogue(search),
                self._upkeep.keep_addresses(self._network.interfaces, self._agent, discovery),
                self._stop_if_lost(),
                self._upkeep.keep_memory(),
                self._upkeep.keep_certificate(self._network.certificate),
                self._upkeep.try_served(self._agent, self._models.specs.local),
                self._upkeep.keep_issues(self._issues, self._agent),
                self._serving.commands.unload_idle(self._options.keep_alive or math.inf),
            ]
            advertising = group.create_task(self._advertise(discovery))
            tasks = [advertising, *(group.create_task(part) for part in parts)]
            await self._serve_api()
            await self._stop.wait()
            await self._leave(advertising)
            for task in tasks:
                task.cancel()

    async def _advertise(self, discovery: Discovery | None) -> None:
        if discovery:
            await discovery.run(lambda: self._agent.is_head, self._agent.changed)

    async def _serve_api(self) -> None:
        await self._network.api.start(self._serving.app)
        info = self._agent.info
        address = join_host_port(self._options.host or "localhost", self._network.api.port)
        log.info("node %s of cluster %s: API on %s://%s/v1", info.name, info.cluster, info.api_scheme, address)
        if certificate := self._network.certificate:
            log.info("the SHA-256 of the API's certificate is %s", certificate.fingerprint)
        if self._network.api.ollama_port is not None:
            log.info("Ollama's clients find the API on port %d, too", self._network.api.ollama_port)
        if not self._options.models:
            log.info(
                "no model is named: a request loads the one that it asks for; so does a start with --model %s, or "
                "another short name or hub id. `cluster status` shows the cluster",
                FIRST_MODEL,
            )

    async def _leave(self, advertising: asyncio.Task[None]) -> None:
        """Finish the requests in flight or hand them to other nodes, unless told to quit; then say goodbye to peers."""
        log.info("stopping: waiting up to %.0f s for answers under way; press Ctrl-C again to quit at once", FINISH_S)
        finishing = asyncio.create_task(self._finish_requests())
        quitting = asyncio.create_task(self._quit.wait())
        await asyncio.wait((finishing, quitting), return_when=asyncio.FIRST_COMPLETED)
        finishing.cancel()
        quitting.cancel()
        exit_within(EXIT_S, self._exit_code)
        advertising.cancel()
        await asyncio.wait([advertising])
        await self._network.heartbeats.leave()

    async def _finish_requests(self) -> None:
        self._agent.set_draining(True)
        await asyncio.gather(self._network.api.finish(FINISH_S), self._hand_over())
        await self._network.api.stop()
        if self._serving.stored:
            await self._serving.stored.flush()

    async def _hand_over(self) -> None:
        """Stay in the rings that have requests until other nodes have taken over, if there are any."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while is_needed(self._agent.view()):
                    await self._agent.changed.wait(GRID_S)  # the end of a request here changes nothing else

    async def _stop_if_lost(self) -> None:
        """Stop the node if a job of the compute thread never ends, or the device is lost: nothing else ends that."""
        lost = await self._watchdog.lost()
        note_end(self._data.path)
        log.critical("this node gives up its rings and ends with %d, to be started anew: %s", EXIT_LOST, lost)
        self._exit_code = EXIT_LOST
        self._agent.set_draining(True)
        self._serving.rings.give_up(lost)
        self._stop.set()

    # --- what it says of itself ---------------------------------------------------------------------------------------

    def _report(self) -> NodeReport:
        name, faults, rings, head = self._options.name, self._compute.faults, self._serving.rings, self._serving.head
        failed = (gpu_failed(name, faults.count, faults.last.message),) if faults.last else ()
        return NodeReport(
            info=self._agent.info,
            memory=replace(self._facts.memory, used=rings.memory_used(), kept=rings.memory_kept()),
            stages=rings.reports(),
            idle=rings.idle(),
            traffic=rings.traffic(),
            models=self._models.catalogue.local(),
            preload=self._models.preload,
            drafts=self._models.drafts,
            min_stages=self._options.stages or 1,
            job_s=self._watchdog.age_s,
            speeds=rings.speeds(),
            issues=(*self._upkeep.issues, *failed, *rings.issues(), *head.issues(), *self._network.issues()),
            aliases=tuple(Alias(*given) for given in self._options.aliases),
            kv_disk=int(float(f"{self._models.kv.store.bytes:.1e}")),
            kv_budget=self._models.kv.store.budget if self._serving.stored else 0,
            kv_uncopied=int(float(f"{self._models.copies.behind:.1e}")),
            presets=tuple(Preset(model, dict(given)) for model, given in self._options.presets),
            crashed=self._models.crashes.crashed(),
        )

    async def _issues(self) -> tuple[Issue, ...]:
        """Issues of this machine, of this node's options and of its threads. May wait for a disk."""
        look = partial(
            examine,
            data=self._data,
            denied=self._models.catalogue.denied,
            deaf=self._network.discovery.failure,
            unreached=self._network.unreached.find(),
        )
        found = await self._pools.upkeep.run(look, self._options.name, self._models.catalogue.folders)
        full = (
            Code.POOL_FULL.issue(node=self._options.name, pool=pool, seconds=seconds)
            for pool, seconds in self._pools.full()
        )
        failure = self._models.kv.store.failure
        unkept = (Code.KV_NOT_STORED.issue(node=self._options.name, error=failure),) if failure else ()
        return *self._facts.issues, *found, *full, *unkept
