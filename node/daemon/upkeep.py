"""What a node looks after every few seconds: its models on disk, its addresses, and its free memory."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from node.cluster.agent import Agent
from node.core.clock import LOOK_S, in_step
from node.core.errors import PippinError
from node.core.models import ModelVersion
from node.core.pool import Pool
from node.core.reports import Issue, Severity
from node.core.retried import Retried
from node.core.rings import Placement
from node.host import memory
from node.host.certificate import Certificate
from node.host.interfaces import Interface, addresses, multicast_addresses
from node.members.discovery import Discovery
from node.model.catalogue import Catalogue

log = logging.getLogger(__name__)


class Upkeep:
    """Periodic tasks of a node. `pool`: its threads do the work that may block."""

    def __init__(self, pool: Pool, catalogue: Catalogue) -> None:
        self._pool = pool
        self._catalogue = catalogue
        self._retried = Retried("The search for models on the disk failed")
        self.issues: tuple[Issue, ...] = ()
        """Of this machine, as of the last look."""

    async def begin(self) -> asyncio.Task[None]:
        """Search the disk for models. Returns the search, which may be unfinished: a slow disk delays no start."""
        search = asyncio.create_task(self._search())
        await asyncio.wait({search}, timeout=10.0)
        return search

    async def keep_catalogue(self, search: asyncio.Task[None]) -> None:
        """Search the disk for models again and again, after a slow search less often. `search`: the first one, from `begin`."""
        begun = time.monotonic()
        while True:
            await search
            await asyncio.sleep(in_step(max(LOOK_S, 20 * (time.monotonic() - begun))))
            begun = time.monotonic()
            search = asyncio.create_task(self._search())

    async def _search(self) -> None:
        """Refresh the catalogue. If the disk cannot be read, the catalogue stays as it is."""
        with self._retried:
            await self._pool.run(self._catalogue.refresh)

    async def keep_addresses(
        self, read: Callable[[], tuple[Interface, ...]], agent: Agent, discovery: Discovery | None
    ) -> None:
        """Tell peers this machine's new addresses when a cable is plugged in or a Wi-Fi is joined."""
        retried = Retried("The look at this machine's addresses failed")
        while True:
            await asyncio.sleep(in_step(LOOK_S))
            with retried:
                interfaces = await self._pool.run(read)
                found = addresses(interfaces)
                if found and agent.readdress(found, interfaces):
                    log.info("this node's addresses are now %s", ", ".join(found))
                    if discovery:
                        await discovery.update(agent.info, multicast_addresses(interfaces))

    async def keep_issues(self, find: Callable[[], Awaitable[tuple[Issue, ...]]], agent: Agent) -> None:
        """Look for issues of this machine; log each when it comes and when it goes, and tell the other nodes."""
        retried = Retried("The look for issues of this machine failed")
        while True:
            with retried:
                former, self.issues = self.issues, await find()
                if _log_changes(former, self.issues):
                    agent.touch()
            await asyncio.sleep(in_step(30.0))

    async def try_served(self, agent: Agent, describe: Callable[[ModelVersion], Awaitable[object]]) -> None:
        """Describe the models that other nodes serve, while this one has no layers, as it may be the next to take some: a first
        run of a model, in a process of its own, takes a second, for which streams would wait.
        """
        tried: set[ModelVersion] = set()
        seen: Placement | None = None
        while True:
            while agent.placement is seen:
                await agent.adopted.wait()
            seen = agent.placement
            is_idle = all(agent.info.id not in ring.nodes for ring in seen.rings)
            for version in {ring.version for ring in seen.rings} - tried if is_idle else ():
                tried.add(version)
                try:
                    await describe(version)
                except (PippinError, OSError) as error:
                    log.debug("%s was not tried: %s", version.model, error)

    async def keep_certificate(self, certificate: Certificate | None) -> None:
        """Use a certificate that was renewed on the disk. In this thread, as it is the one that shakes hands."""
        while certificate:
            await asyncio.sleep(in_step(LOOK_S))
            certificate.renew()

    async def keep_memory(self) -> None:
        """Return the heap memory that large requests freed to the system."""
        while True:
            await asyncio.sleep(in_step(10.0))
            await self._pool.run(memory.release_free_heap)


def _log_changes(former: tuple[Issue, ...], present: tuple[Issue, ...]) -> bool:
    """Whether an issue has come or gone. Their texts have numbers, which change all the time."""
    was, now = {issue.code for issue in former}, {issue.code for issue in present}
    for issue in present:
        if issue.code not in was:
            log.log(
                logging.INFO if issue.severity is Severity.INFO else logging.WARNING, "%s %s", issue.text, issue.hint
            )
    for code in was - now:
        log.info("%s: no longer so", code)
    return was != now
