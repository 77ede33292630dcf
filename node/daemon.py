"""Composition root: builds the parts of a node, starts them in order, and stops them in reverse order."""

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from api.app import create_app
from api.http.server import ApiServer
from node import PROTOCOL, __version__
from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.control_service import ControlService
from node.cluster.draining import Draining, is_needed
from node.cluster.head import Head
from node.cluster.heartbeats import Heartbeats
from node.cluster.loading import Loading
from node.cluster.model_specs import ModelSpecs
from node.cluster.unreached import Unreached
from node.core.addresses import join_host_port
from node.core.errors import PippinError
from node.core.health import gpu_failed, pool_full
from node.core.logs import RecentLines
from node.core.models import Alias, DraftChoice, Preset
from node.core.nodes import Memory, NodeInfo
from node.core.pool import Pools
from node.core.reports import Issue, NodeReport
from node.core.views import PeerView
from node.engine.blas import has_slow_blas, tuned_blas
from node.engine.compute import Compute
from node.engine.device import choose_device, device_memory
from node.engine.watchdog import Watchdog
from node.gateway.disk import Disk
from node.gateway.gateway import Gateway
from node.host import memory
from node.host.chip import chip_name
from node.host.descriptors import DescriptorShortage
from node.host.examination import examine, examine_start
from node.host.failures import note_end
from node.host.firewall import blocked_program
from node.host.identity import DataDirectory
from node.host.interfaces import Interface, hardware_kinds, local_interfaces
from node.host.secret import read_secret
from node.host.shutdown import exit_within, on_signals
from node.members.address_book import AddressBook
from node.members.discovery import Discovery
from node.model.catalogue import Catalogue, lm_studio
from node.model.files import Files
from node.model.hub import Hub
from node.model.json_parser import JsonParser
from node.model.layouts import Layouts
from node.model.stage_fetch import Others
from node.options import Options
from node.ring.lifecycle import Rings
from node.ring.progress_log import tell_progress
from node.rpc.client import RpcClient
from node.rpc.security import Security, secure
from node.rpc.server import RpcServer
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from node.text.sandboxed_parser import SandboxedParser
from node.upkeep import Upkeep, addresses, multicast_addresses

log = logging.getLogger(__name__)

BUILTIN = Path(__file__).parent / "builtin"
FIRST_MODEL = "llama-3.2-1b"
"""Suggested to those who name none: a small one, which any Mac can hold."""
FINISH_S = 30.0
"""Timeout after the first Ctrl-C for the requests in flight, here and in this node's rings."""
EXIT_S = 5.0
"""Timeout after that, at which the process exits even if threads hang: a goodbye to peers takes a second."""
EXIT_LOST = 70
"""Exit code of a node whose compute thread is stuck, or whose GPU is lost: EX_SOFTWARE of sysexits.h."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about this machine. Read before gRPC and Metal start: some need a subprocess, and neither survives a fork."""

    kinds: Mapping[str, str]
    """Kind of each interface, by its name."""
    memory: Memory
    chip: str
    issues: tuple[Issue, ...] = ()
    """Of this machine and of the options; they stay until the next start."""

    @classmethod
    def read(cls, options: Options) -> "HostFacts":
        """Raises DeviceUnavailable if MLX cannot use the device of the options."""
        kinds, chip, blocked = hardware_kinds(), chip_name(), blocked_program()
        choose_device(options.device)
        device, asked = device_memory(), options.memory
        issues = examine_start(
            options.name,
            excess=memory.excess(device, asked),
            blocked=blocked,
            blas=tuned_blas() if has_slow_blas() else None,
            allow_sleep=options.allow_sleep,
            is_open=options.open_api and not options.api_keys,
        )
        return cls(kinds, Memory(memory.total(), memory.usable(device, asked)), chip, tuple(issues))


class Daemon:
    """One node. Create it inside a running event loop; `run` returns when the node has been told to stop."""

    def __init__(
        self,
        options: Options,
        data: DataDirectory,
        facts: HostFacts,
        sandboxes: SandboxServer,
        recent: RecentLines,
    ) -> None:
        """`recent`: the log of this process. Raises PortTaken, SecretUnusable."""
        self._options = options
        self._data = data
        self._facts = facts
        self._recent = recent
        self._stop = asyncio.Event()
        self._quit = asyncio.Event()
        self._exit_code = 0
        self._pools = Pools()
        self._compute = Compute(wire=options.wire)
        self._watchdog = Watchdog(self._compute, options.step_timeout)
        secret = read_secret(options.secret_file)
        security = secure(secret, options.cluster, data.key) if secret else None
        self._build_network(security)
        self._build_models(sandboxes)
        self._build_rings(sandboxes, is_open=security is None)

    def _build_network(self, security: Security | None) -> None:
        options, data = self._options, self._data
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        hosts = (options.host or every,)
        interfaces = self._interfaces()
        self._api = ApiServer(hosts, options.api_port, ollama_port=options.ollama_port)
        self._rpc = RpcServer(hosts, options.grpc_port, security)
        info = self._info(addresses(interfaces))
        self._client = RpcClient(security)
        self._book = AddressBook(info.id, self._client, interfaces, anywhere=security is not None)
        fingerprint = security.fingerprint if security else ""
        self._discovery = Discovery(
            info, multicast_addresses(interfaces), self._book.add_advert, fingerprint=fingerprint
        )
        self._agent = Agent(
            info, data.identity.term, self._book, self._report, data.save_term, fail_after_s=options.fail_after
        )
        self._unreached = Unreached(self._agent, self._book, lambda: self._discovery.adverts)
        self._heartbeats = Heartbeats(self._agent, self._book, self._client)

    def _build_models(self, sandboxes: SandboxServer) -> None:
        self._parser = SandboxedParser(sandboxes)
        layouts = Layouts(JsonParser(self._parser))
        hub = Hub(layouts=layouts)
        self._preload: tuple[str, ...] = ()
        self._drafts: tuple[DraftChoice, ...] = ()
        folders = (*self._options.models_dirs, *lm_studio(Path.home()))
        self._catalogue = Catalogue(BUILTIN, folders, self._data.path, layouts=layouts)
        self._upkeep = Upkeep(self._pools.upkeep, self._catalogue)
        others = Others(self._agent.info.id, self._client, self._agent.others, self._agent.holders)
        self._files = Files(self._catalogue, hub, others, self._pools)
        self._specs = ModelSpecs(
            self._catalogue,
            hub,
            self._compute,
            self._client,
            self._agent.holders,
            self._pools,
            self._options.kv_bits,
            self._files.of_tokenizer,
            sandboxes,
        )
        self._grammars = Grammars(sandboxes, self._options.grammar_timeout)

    def _build_rings(self, sandboxes: SandboxServer, *, is_open: bool) -> None:
        options = self._options
        self._rings = Rings(
            self._agent,
            self._book,
            self._compute,
            self._client,
            self._files.of_shard,
            usable=self._facts.memory.usable,
            max_queue=options.max_queue,
            max_batch=options.max_batch,
            step_timeout_s=options.step_timeout,
            guesses=options.guesses,
            grammars=self._grammars,
        )
        self._head = Head(
            self._agent,
            self._specs,
            context=options.context,
            max_sessions=options.max_sessions,
            max_rings=options.max_rings,
        )
        draining = Draining(self._agent, self._head, self._book, self._client)
        self._loading = loading = Loading(self._agent, self._head, self._book, self._client, self._release)
        disk = Disk(self._catalogue, self._specs, self._files, self._pools, self._rings.models, self._agent.touch)
        allowlist = Allowlist(self._agent, options.allow_models)
        self._control = ControlService(self._agent, self._head, allowlist, self._specs, draining, loading, self._recent)
        is_loopback = bool(options.host) and ip_address(options.host).is_loopback
        self._gateway = Gateway(
            self._agent,
            self._book,
            self._rings,
            self._client,
            self._catalogue,
            self._files.of_tokenizer,
            self._head.want,
            allowlist,
            draining,
            loading,
            disk,
            self._pools,
            self._grammars,
            sandboxes,
            self._recent,
            started_at=int(time.time()),
            open_cluster=is_open and not is_loopback,
            other_secret=self._other_secret,
        )

    # --- its life -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run the node. Returns the exit code."""
        asyncio.get_running_loop().set_exception_handler(DescriptorShortage())
        on_signals(self._stop.set, self._quit.set)
        self._compute.start()
        async with self._client:
            try:
                await self._run_parts()
            except ExceptionGroup:
                log.exception("this node ends, as a part of it failed")
                self._exit_code = 1
            finally:
                exit_within(EXIT_S, self._exit_code)
                await self._rpc.stop()
                self._compute.stop()
                await self._gateway.close()
                await self._grammars.end()
                await self._parser.end()
        log.info("stopped")
        return self._exit_code

    async def _run_parts(self) -> None:
        search = await self._upkeep.begin()
        await self._grammars.start()
        self._preload, self._drafts = await self._pools.files.run(self._named)
        await self._rpc.start(self._control, self._rings, self._files)
        discovery = self._discovery if self._options.mdns else None
        async with asyncio.TaskGroup() as group:
            keeping = (self._loading.run(self._options.keep_alive),) if self._options.keep_alive else ()
            parts = (
                *keeping,
                self._agent.run(),
                self._heartbeats.run(self._options.peers),
                self._rings.run(),
                tell_progress(self._rings.reports, bars=self._options.log_file is None and sys.stderr.isatty()),
                self._head.run(),
                self._upkeep.keep_catalogue(search),
                self._upkeep.keep_addresses(self._interfaces, self._agent, discovery),
                self._stop_if_lost(),
                self._upkeep.keep_memory(),
                self._upkeep.keep_issues(self._issues, self._agent),
            )
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
        app = create_app(
            self._gateway,
            api_keys=self._options.api_keys,
            cors_origins=self._options.cors_origins,
            names=(socket.gethostname(), *self._options.allow_hosts),
            open_api=self._options.open_api,
            body_limit=self._options.max_body,
            ollama_port=self._api.ollama_port,
        )
        await self._api.start(app)
        info, address = self._agent.info, join_host_port(self._options.host or "localhost", self._api.port)
        log.info("node %s of cluster %s: API on http://%s/v1", info.name, info.cluster, address)
        if self._api.ollama_port is not None:
            log.info("Ollama's clients find the API on port %d, too", self._api.ollama_port)
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
        await self._heartbeats.leave()

    async def _finish_requests(self) -> None:
        self._agent.set_draining(True)
        await asyncio.gather(self._api.finish(FINISH_S), self._hand_over())
        await self._api.stop()

    async def _hand_over(self) -> None:
        """Stay in the rings that have requests until other nodes have taken over, if there are any."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while is_needed(self._agent.view()):
                    await self._agent.changed.wait()

    async def _stop_if_lost(self) -> None:
        """Stop the node if a job of the compute thread never ends, or the device is lost: only the end of the process
        ends that.
        """
        lost = await self._watchdog.lost()
        note_end(self._data.path)
        log.critical("this node gives up its rings and ends with %d, to be started anew: %s", EXIT_LOST, lost)
        self._exit_code = EXIT_LOST
        self._agent.set_draining(True)
        self._rings.give_up(lost)
        self._stop.set()

    def _release(self, model: str) -> None:
        """Unload a model that a user does not want any more: until its next start, this node does not name it either."""
        self._preload = tuple(named for named in self._preload if named != model)
        self._rings.release(model)
        self._agent.touch()

    # --- its reports --------------------------------------------------------------------------------------------------

    def _info(self, addresses: tuple[str, ...]) -> NodeInfo:
        return NodeInfo(
            id=self._data.identity.id,
            incarnation=self._data.identity.incarnation,
            name=self._options.name,
            cluster=self._options.cluster,
            version=__version__,
            protocol=PROTOCOL,
            addresses=addresses,
            grpc_port=self._rpc.port,
            api_port=self._api.port,
            chip=self._facts.chip,
            started_at=time.time_ns() // 1_000_000,
        )

    def _report(self) -> NodeReport:
        return NodeReport(
            info=self._agent.info,
            memory=replace(self._facts.memory, used=self._rings.memory_used()),
            stages=self._rings.reports(),
            idle=self._rings.idle(),
            traffic=self._rings.traffic(),
            models=self._catalogue.local(),
            preload=self._preload,
            drafts=self._drafts,
            min_stages=self._options.stages or 1,
            job_s=self._watchdog.age_s,
            speeds=self._rings.speeds(),
            issues=(*self._upkeep.issues, *self._device_issues()),
            aliases=tuple(Alias(*given) for given in self._options.aliases),
            presets=tuple(Preset(model, dict(given)) for model, given in self._options.presets),
        )

    def _device_issues(self) -> tuple[Issue, ...]:
        faults = self._compute.faults
        return (gpu_failed(self._options.name, faults.count, faults.last.message),) if faults.last else ()

    async def _issues(self) -> tuple[Issue, ...]:
        """Issues of this machine, of this node's options and of its threads. May wait for a disk."""
        look = partial(
            examine,
            denied=self._catalogue.denied,
            deaf=self._discovery.failure,
            unreached=self._unreached.find(),
        )
        found = await self._pools.upkeep.run(look, self._options.name, self._catalogue.folders)
        full = (pool_full(self._options.name, *each) for each in self._pools.full())
        return *self._facts.issues, *found, *full

    def _other_secret(self) -> tuple[PeerView, ...]:
        """Nodes with another secret: those that advertise themselves, and of --peer those that do not."""
        heard = self._discovery.refused
        addresses = {
            join_host_port(address, peer.report.info.grpc_port)
            for peer in heard
            for address in peer.report.info.addresses
        }
        return (*heard, *(peer for peer in self._heartbeats.refused if peer.report.info.name not in addresses))

    def _named(self) -> tuple[tuple[str, ...], tuple[DraftChoice, ...]]:
        """The models of --model and --draft. May search the disk."""
        drafts = tuple(DraftChoice(*map(self._full_id, names)) for names in self._options.drafts)
        return tuple(map(self._full_id, self._options.models)), drafts

    def _full_id(self, model: str) -> str:
        """Id of a model named by --model; the name as it is if no such model is found."""
        try:
            return self._catalogue.find(model)
        except (PippinError, OSError) as error:
            log.error("--model %s: %s", model, error)
            return model

    def _interfaces(self) -> tuple[Interface, ...]:
        return local_interfaces(self._options.host, self._options.interface, self._facts.kinds)
