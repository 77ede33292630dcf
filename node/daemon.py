"""The composition root: builds the parts of a node, starts them in order, and ends them in the opposite order."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from api.app import create_app
from api.server import ApiServer
from node import PROTOCOL, __version__
from node.cluster.address_book import AddressBook
from node.cluster.agent import Agent
from node.cluster.allowed import Allowed
from node.cluster.discovery import Discovery
from node.cluster.doubles import Doubles
from node.cluster.draining import Draining, is_missed
from node.cluster.head import Head
from node.cluster.heartbeats import Heartbeats
from node.cluster.service import ControlService
from node.cluster.specs import Specs
from node.core.addresses import join_host_port
from node.core.errors import PippinError
from node.core.pool import Pools
from node.core.retried import Retried
from node.core.types import Memory, NodeInfo, NodeReport
from node.engine.compute import Compute
from node.engine.device import device_memory
from node.engine.watchdog import Watchdog
from node.gateway.gateway import Gateway
from node.host import memory
from node.host.chip import chip_name
from node.host.descriptors import Shortage
from node.host.ending import end_within, on_signals
from node.host.identity import DataDirectory
from node.host.interfaces import Interface, hardware_kinds, local_interfaces
from node.host.secret import read_secret
from node.model.catalogue import Catalogue
from node.model.files import Files
from node.model.hub import Hub
from node.options import Options
from node.ring.lifecycle import Rings
from node.rpc.client import RpcClient
from node.rpc.security import secure
from node.rpc.server import RpcServer
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer

log = logging.getLogger(__name__)

BUILTIN = Path(__file__).parent / "builtin"
DRAIN_S = 30.0
"""How long the requests under way, here and in this node's rings, may take after the first Ctrl-C."""
EXIT_S = 5.0
"""Then the process ends, whatever its threads are at: a goodbye takes a second, and so do the last calls of peers."""
EXIT_STUCK = 70
"""The exit code of a node that could compute no more: EX_SOFTWARE of sysexits.h."""
NETWORK_S = 5.0
EXIT_DOUBLE = 78
"""EX_CONFIG of sysexits.h."""
LISTING_S = 5.0
"""How often the disk is searched for models that came or went."""
LISTING_SHARE = 20
"""A search that takes long is followed by a pause of so many times its length."""
GIVE_BACK_S = 10.0
"""How often memory that is free goes back to the system."""
FIRST_LISTING_S = 10.0
"""A node starts without its list of models when a disk takes longer than this."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """About this machine. Asked before gRPC starts, as some need a subprocess and gRPC does not survive a fork."""

    kinds: Mapping[str, str]
    """What each interface is, by its name."""
    memory: Memory
    chip: str

    @classmethod
    def ask(cls, options: Options) -> "HostFacts":
        total = memory.total()
        return cls(hardware_kinds(), Memory(total, memory.usable(device_memory(), options.memory)), chip_name())


class Daemon:
    """One node; to be made inside a running loop. `run` ends when the node has been told to stop."""

    def __init__(self, options: Options, data: DataDirectory, facts: HostFacts, sandboxes: SandboxServer) -> None:
        """Raises PortTaken, SecretUnusable."""
        secret = read_secret(options.secret_file)
        security = secure(secret, options.cluster, data.key) if secret else None
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        hosts = (options.host or every,)
        self._options = options
        self._kinds = facts.kinds
        interfaces = self._interfaces()
        self._memory = facts.memory
        self._api = ApiServer(hosts, options.api_port)
        self._rpc = RpcServer(hosts, options.grpc_port, security)
        info = self._info(data, facts.chip, _addresses(interfaces))
        self._compute = Compute()
        self._watchdog = Watchdog(self._compute, options.step_timeout)
        self._client = RpcClient(security)
        self._catalogue = Catalogue(BUILTIN, options.models_dirs, data.path)
        self._preload: tuple[str, ...] = ()
        self._pools = Pools()
        self._grammars = Grammars(sandboxes, options.grammar_timeout)
        hub = Hub()
        self._book = AddressBook(info.id, self._client, interfaces, anywhere=security is not None)
        fingerprint = security.fingerprint if security else ""
        discovery = Discovery(info, _multicast(interfaces), self._book.add_advert, fingerprint=fingerprint)
        self._discovery = discovery if options.mdns else None
        self._agent = Agent(
            info, data.identity.term, self._book, self._report, data.save_term, fail_after_s=options.fail_after
        )
        self._heartbeats = Heartbeats(self._agent, self._book, self._client)
        self._files = Files(self._catalogue, hub, self._client, self._agent.holders, self._pools)
        self._rings = Rings(
            self._agent,
            self._book,
            self._compute,
            self._client,
            self._files.of_shard,
            usable=facts.memory.usable,
            max_queue=options.max_queue,
            max_batch=options.max_batch,
            step_timeout_s=options.step_timeout,
            grammars=self._grammars,
        )
        specs = Specs(self._catalogue, hub, self._compute, self._client, self._agent.holders, self._pools)
        self._head = Head(
            self._agent,
            specs,
            context=options.context,
            max_sessions=options.max_sessions,
            max_rings=options.max_rings,
        )
        draining = Draining(self._agent, self._head, self._book, self._client)
        allowed = Allowed(self._agent, options.allow_models)
        self._data = data
        self._doubles = Doubles(self._agent, self._book, self._client, data.key, data.save_incarnation)
        self._control = ControlService(self._agent, self._head, allowed, specs, draining, self._doubles)
        self._gateway = Gateway(
            self._agent,
            self._book,
            self._rings,
            self._client,
            self._catalogue,
            self._files.of_tokenizer,
            self._head.want,
            allowed,
            draining,
            self._pools,
            self._grammars,
            sandboxes,
            started_at=int(time.time()),
            open_cluster=security is None and not _is_loopback(options.host),
            other_secret=lambda: discovery.refused,
        )
        self._listing = Retried("The search for models on the disk failed")
        self._stop = asyncio.Event()
        self._quit = asyncio.Event()
        self._code = 0
        self._gave_way = False

    def _info(self, data: DataDirectory, chip: str, addresses: tuple[str, ...]) -> NodeInfo:
        return NodeInfo(
            id=data.identity.id,
            incarnation=data.identity.incarnation,
            name=self._options.name,
            cluster=self._options.cluster,
            version=__version__,
            protocol=PROTOCOL,
            addresses=addresses,
            grpc_port=self._rpc.port,
            api_port=self._api.port,
            chip=chip,
            started_at=time.time_ns() // 1_000_000,
        )

    async def run(self) -> int:
        """The exit code."""
        asyncio.get_running_loop().set_exception_handler(Shortage())
        on_signals(self._stop.set, self._quit.set)
        self._compute.start()
        async with self._client:
            try:
                await self._run_parts()
            except ExceptionGroup:
                log.exception("this node ends, as a part of it failed")
                self._code = 1
            finally:
                end_within(EXIT_S, self._code)
                await self._rpc.stop()
                self._compute.stop()
                await self._gateway.close()
                await self._grammars.end()
        log.info("stopped")
        return self._code

    async def _run_parts(self) -> None:
        listing = asyncio.create_task(self._list_models())
        await asyncio.wait({listing}, timeout=FIRST_LISTING_S)
        await self._grammars.start()
        self._preload = tuple(self._known(name) for name in self._options.models)
        await self._rpc.start(self._control, self._rings, self._files)
        async with asyncio.TaskGroup() as group:
            parts = (
                self._agent.run(),
                self._heartbeats.run(self._options.peers),
                self._rings.run(),
                self._head.run(),
                self._keep_listing(listing),
                self._keep_addresses(),
                self._keep_computing(),
                self._keep_id(),
                self._keep_memory(),
            )
            being_found = group.create_task(self._be_found())
            tasks = [being_found, *(group.create_task(part) for part in parts)]
            app = create_app(
                self._gateway,
                api_keys=self._options.api_keys,
                cors_origins=self._options.cors_origins,
                names=(socket.gethostname(), *self._options.allow_hosts),
                open_api=self._options.open_api,
                body_limit=self._options.max_body,
            )
            await self._api.start(app)
            log.info("node %s of cluster %s: API on %s", self._agent.info.name, self._agent.info.cluster, self._url())
            await self._stop.wait()
            await self._end(being_found)
            for task in tasks:
                task.cancel()

    async def _end(self, being_found: asyncio.Task[None]) -> None:
        """Let the answers under way be finished or go to other nodes, unless told to quit; then tell the others.

        What a node that gave way to its double told them would be taken for the other's word.
        """
        if self._gave_way:
            return
        log.info("stopping: waiting up to %.0f s for answers under way; press Ctrl-C again to quit at once", DRAIN_S)
        drain = asyncio.create_task(self._wind_down())
        quit_now = asyncio.create_task(self._quit.wait())
        await asyncio.wait((drain, quit_now), return_when=asyncio.FIRST_COMPLETED)
        drain.cancel()
        quit_now.cancel()
        end_within(EXIT_S, self._code)
        being_found.cancel()
        await asyncio.wait([being_found])
        await self._heartbeats.leave()

    async def _wind_down(self) -> None:
        self._agent.set_draining(True)
        await asyncio.gather(self._api.finish(DRAIN_S), self._hand_over())
        await self._api.stop()

    async def _hand_over(self) -> None:
        """Stay in the rings that answer somebody until other nodes have taken over, if there are any."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while is_missed(self._agent.view()):
                    await self._agent.changed.wait()

    def _url(self) -> str:
        return f"http://{join_host_port(self._options.host or 'localhost', self._api.port)}/v1"

    # --- what this node says of itself --------------------------------------------------------------------------------

    def _report(self) -> NodeReport:
        return NodeReport(
            info=self._agent.info,
            memory=replace(self._memory, used=self._rings.memory_used()),
            loads=self._rings.reports(),
            idle=self._rings.idle(),
            rings=self._rings.loads(),
            models=self._catalogue.local(),
            preload=self._preload,
            min_stages=self._options.stages or 1,
            job_s=self._watchdog.age_s,
        )

    def _known(self, name: str) -> str:
        try:
            return self._catalogue.find(name)
        except (PippinError, OSError) as error:
            log.error("--model %s: %s", name, error)
            return name

    async def _list_models(self) -> None:
        """What was found before holds as long as the disk can't be read."""
        with self._listing:
            await self._pools.upkeep.run(self._catalogue.refresh)

    def _interfaces(self) -> tuple[Interface, ...]:
        return local_interfaces(self._options.host, self._options.interface, self._kinds)

    async def _keep_addresses(self) -> None:
        """Notice a cable that is plugged or Wi-Fi that is joined."""
        look = Retried("The look at this machine's addresses failed")
        while True:
            await asyncio.sleep(NETWORK_S)
            with look:
                interfaces = await self._pools.upkeep.run(self._interfaces)
                await self._readdress(interfaces)

    async def _readdress(self, interfaces: tuple[Interface, ...]) -> None:
        addresses = _addresses(interfaces)
        if addresses and addresses != self._agent.info.addresses:
            log.info("this node's addresses are now %s", ", ".join(addresses))
            self._agent.readdress(addresses, interfaces)
            if self._discovery:
                await self._discovery.update(self._agent.info, _multicast(interfaces))

    async def _keep_memory(self) -> None:
        """What large requests took and left goes back to the system."""
        while True:
            await asyncio.sleep(GIVE_BACK_S)
            await self._pools.upkeep.run(memory.give_back)

    async def _keep_listing(self, listing: asyncio.Task[None]) -> None:
        """`listing`: the first one, which may still be under way."""
        begun = time.monotonic()
        while True:
            await listing
            await asyncio.sleep(max(LISTING_S, LISTING_SHARE * (time.monotonic() - begun)))
            begun = time.monotonic()
            listing = asyncio.create_task(self._list_models())

    async def _keep_computing(self) -> None:
        """A job that never ends holds up all others, and only the end of the process ends it."""
        stuck = await self._watchdog.stuck()
        log.critical("this node gives up its rings and ends with %d, to be started anew: %s", EXIT_STUCK, stuck)
        self._code = EXIT_STUCK
        self._agent.set_draining(True)
        self._rings.give_up(stuck)
        self._stop.set()

    async def _keep_id(self) -> None:
        """Two nodes of one id undo each other's work, so the younger one ends at once."""
        older = await self._doubles.older()
        where = ", ".join(older.addresses)
        log.critical("%s (%s) runs with a copy of this node's data directory, and longer", older.name, where)
        try:
            self._data.replace_key()
            log.critical("this node has made itself a new id, and ends with %d: start it again", EXIT_DOUBLE)
        except OSError as error:
            log.critical(
                "this node ends with %d, as it can't save a new id in %s: %s", EXIT_DOUBLE, self._data.path, error
            )
        self._code, self._gave_way = EXIT_DOUBLE, True
        self._stop.set()

    async def _be_found(self) -> None:
        if self._discovery:
            await self._discovery.run(lambda: self._agent.is_head, self._agent.changed)


def _is_loopback(host: str) -> bool:
    return bool(host) and ip_address(host).is_loopback


def _addresses(interfaces: tuple[Interface, ...]) -> tuple[str, ...]:
    return tuple(address for interface in interfaces for address in interface.addresses)


def _multicast(interfaces: tuple[Interface, ...]) -> tuple[str, ...]:
    """The addresses that mDNS uses."""
    return tuple(address for address in _addresses(interfaces) if ":" not in address)
