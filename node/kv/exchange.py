"""Blocks of KV of other nodes: which of them have what, and how it comes here; and this node's for the others.

Only nodes of the cluster get any, as they get frames: by certificate, or without a secret by their addresses. Who asks for a block
knows its name, and so the text. Whoever sends one could as well compute a stage wrongly: nodes of a cluster trust each other so far.
"""

import asyncio
import io
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from node.core.clock import now
from node.core.errors import BadRequest, NotAdmitted, Overloaded, PeerTimeout, PeerUnavailable, PippinError
from node.core.frames import Tensor
from node.core.nodes import Address, Caller
from node.core.pool import Pool
from node.core.quota import Quota
from node.core.units import format_bytes
from node.kv.blocks import Damaged, Kv, decode, encode, names_of
from node.kv.store import KvStore
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

MAX_READERS = 8
"""Streams of KV that are sent at once."""
MAX_READERS_OF_ONE = 4
"""Of those, to one node."""
MAX_WRITERS, MAX_WRITERS_OF_ONE = 4, 2
"""Copies that are received at once, each of which is in memory until it is written. A node sends one after the other."""
MAX_COPIED_BYTES = 256 << 20
"""Of a block that is copied: 1 MB for each token in one stage's caches."""
MAX_CACHES = 1 << 16
_MAX_SPANS = 16384
_SILENCE_S = 60.0
"""Time for which a node that did not answer is not asked again: each prompt would wait for it."""

Spans = Mapping[Address, Sequence[tuple[int, int, int]]]
"""Of each node: blocks, by their places in a chain, and their caches [first, end)."""
Sources = dict[tuple[Address, range], list[int]]
"""The blocks to ask each node for, by their places in a chain; by node and caches."""


@dataclass(slots=True, eq=False)
class KvExchange:
    store: KvStore
    pool: Pool
    """Reads the disk for other nodes, and what they send."""
    client: RpcClient
    others: Callable[[], Sequence[Address]]
    """The other nodes of the cluster that have KV on their disks."""
    is_member: Callable[[Caller], bool]
    _readers: Quota = field(default_factory=lambda: Quota("KV is being sent", MAX_READERS, MAX_READERS_OF_ONE))
    _writers: Quota = field(default_factory=lambda: Quota("Copies of KV come", MAX_WRITERS, MAX_WRITERS_OF_ONE))
    _silent: dict[Address, float] = field(default_factory=dict[Address, float])
    """Nodes that did not answer, and until when they are not asked."""
    _turns: defaultdict[Address, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(MAX_READERS_OF_ONE))
    )
    """Of the streams from each node, which would refuse more at once."""

    # --- for other nodes ----------------------------------------------------------------------------------------------

    async def find(self, chain: bytes, caller: Caller) -> list[tuple[int, int, int]]:
        self._check(caller)
        return await self.pool.run(self._find, chain)

    def _find(self, chain: bytes) -> list[tuple[int, int, int]]:
        found = [(k, *span) for k, name in enumerate(names_of(chain)) for span in self.store.parts(name)]
        return found[:_MAX_SPANS]

    async def read(self, chain: bytes, caches: range, caller: Caller) -> AsyncGenerator[bytes, None]:
        self._check(caller)
        with self._readers.use(caller.name):
            for name in names_of(chain):
                kv = await self.pool.run(self.store.read, name, caches)
                if len(kv) < len(caches):
                    return
                yield await self.pool.run(_joined, name, kv)

    async def keep(self, model: str, chain: bytes, parts: AsyncIterator[bytes], caller: Caller) -> None:
        """See KvHandler."""
        self._check(caller)
        with self._writers.use(caller.name):
            data = bytearray()
            async for part in parts:
                data += part
                if len(data) > MAX_COPIED_BYTES:
                    raise BadRequest(f"A copy of a block of KV has more than {MAX_COPIED_BYTES:,} bytes.")
            await self.pool.run(self._keep, model, names_of(chain), data)

    def _keep(self, model: str, names: list[str], data: bytearray) -> None:
        try:
            kv = _decoded(data, names[-1], range(MAX_CACHES))
            if not kv or len(kv) < max(kv) + 1 - min(kv):
                raise Damaged(f"it has {len(kv)} caches, up to {max(kv, default=0)}")
        except (Damaged, IndexError) as error:
            raise BadRequest(f"A copy of a block of KV can't be kept: {error}.") from error
        self.store.write(model, names[-1], kv)
        if len(self.store.held(names[-1], kv)) < len(kv):
            raise Overloaded(f"A copy of a block of KV of {format_bytes(len(data))} has no room on the disk here.")
        self.store.used(names)

    async def discard(self, chain: bytes, caller: Caller) -> None:
        """See KvHandler."""
        self._check(caller)
        for name in names_of(chain):
            await self.pool.run(self.store.discard, name, f"a device of {caller.name} has failed")

    def _check(self, caller: Caller) -> None:
        if not self.is_member(caller):
            raise NotAdmitted(f"KV is for nodes of this cluster, of which {caller.address} is none.")

    # --- from other nodes ---------------------------------------------------------------------------------------------

    async def ask(self, chain: bytes, lacking: Sequence[Collection[int]]) -> tuple[int, Sources]:
        """Ask the other nodes what they have of these blocks. Returns `sources` of it."""
        return await self.pool.run(sources, await self._spans(chain), lacking)

    async def _spans(self, chain: bytes) -> Spans:
        peers = [peer for peer in self.others() if self._silent.get(peer, 0.0) <= now()]
        told = await asyncio.gather(*(self._ask(peer, chain) for peer in peers))
        return dict(zip(peers, told, strict=True))

    async def completable(self, chain: bytes, lacking: Sequence[Collection[int]]) -> list[int]:
        """Those of these blocks that can be completed: see `ask`."""
        found = [k for k, missing in enumerate(lacking) if not missing]
        if len(found) == len(lacking):
            return found
        return await self.pool.run(_completable, await self._spans(chain), lacking)

    async def _ask(self, peer: Address, chain: bytes) -> Sequence[tuple[int, int, int]]:
        try:
            return await self.client.find_kv(peer, chain)
        except asyncio.CancelledError:  # the prompt waits no longer
            self._silent[peer] = now() + _SILENCE_S
            raise
        except PippinError as error:  # a node of an earlier version has no such call
            log.debug("%s tells of no KV: %s", peer, error)
            if isinstance(error, PeerTimeout | PeerUnavailable):
                self._silent[peer] = now() + _SILENCE_S
            return ()

    async def fetch(
        self, peer: Address, chain: bytes, caches: range, most: int
    ) -> AsyncGenerator[dict[int, dict[str, Tensor]], None]:
        """Yield these caches of these blocks, of at most so many bytes, in their order; fewer, if the peer fails."""
        names = iter(names_of(chain))
        try:
            async with self._turns[peer], aclosing(self.client.read_kv(peer, chain, caches, most)) as blocks:
                async for data in blocks:
                    if (name := next(names, None)) is None:
                        return
                    yield await self.pool.run(_decoded, data, name, caches)
        except (PippinError, Damaged) as error:
            log.warning("no more KV comes from %s: %s", peer, error)


def _joined(name: str, kv: Kv) -> bytes:
    return b"".join(encode(name, kv))


def _decoded(data: bytearray, name: str, caches: range) -> dict[int, dict[str, Tensor]]:
    return decode(io.BytesIO(data), name, caches)


def _completable(spans: Spans, lacking: Sequence[Collection[int]]) -> list[int]:
    of_block: list[dict[Address, list[tuple[int, int, int]]]] = [{} for _ in lacking]
    for peer, told in spans.items():
        for block, first, end in told:
            if block < len(lacking):
                of_block[block].setdefault(peer, []).append((0, first, end))
    return [k for k, missing in enumerate(lacking) if sources(of_block[k], [missing])[0]]


def sources(spans: Spans, lacking: Sequence[Collection[int]]) -> tuple[int, Sources]:
    """Whom to ask for what: how many of the first blocks can be completed, of which `lacking` says what is not here, and the
    blocks to ask each node for, by node and caches. What the nodes tell is untrusted.
    """
    asked: Sources = {}
    held: dict[int, list[tuple[Address, range]]] = {}
    for peer, told in spans.items():
        for block, first, end in told:
            if block < len(lacking) and lacking[block]:
                held.setdefault(block, []).append((peer, range(first, end)))
    for block, missing in enumerate(lacking):
        rest, chosen = set(missing), list[tuple[Address, range]]()
        for peer, caches in held.get(block, ()):
            if not rest:
                break
            if found := {cache for cache in rest if cache in caches}:
                chosen.append((peer, range(min(found), max(found) + 1)))
                rest -= found
        if rest:
            return block, asked
        for source in chosen:
            asked.setdefault(source, []).append(block)
    return len(lacking), asked
