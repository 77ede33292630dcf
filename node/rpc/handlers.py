"""Interfaces that the rest of the node implements for the RPC server."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from node.core.commands import Command
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import Frame
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.model_files import Listing
from node.core.models import ModelSpec, ModelVersion
from node.core.nodes import Caller
from node.core.reports import Heartbeat
from node.core.response_ids import Ask


class ControlHandler(Protocol):
    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        """Process a peer's heartbeat, and return this node's own. Raises Incompatible if the peer is in another
        cluster.

        `caller`: the sender; its id is verified if there is a secret.
        """

    def leave(self, node_id: str, incarnation: int) -> None: ...

    async def want(self, model: str) -> None:
        """On the head: load the model. Raises NotReady if this node is not the head, ModelNotAllowed, …"""

    async def command(self, command: Command) -> None:
        """On the head: carry out a user's command. Raises what `want` raises, ModelBusy, NodeNotFound."""

    async def release(self, model: str, caller: Caller) -> None:
        """Called by the head: free the layers of a model that is not placed any more. Raises NotAdmitted."""

    def set_draining(self, node: str, caller: Caller, *, draining: bool) -> None:
        """Called by the head.

        Raises NodeNotFound if `node` is another node, NotAdmitted if the caller is not the head.
        """

    async def describe(self, version: ModelVersion) -> ModelSpec:
        """Describe a model whose files are here; for an empty revision, any revision.

        Raises ModelNotFound, ModelUnsupported.
        """

    def log(self, lines: int, caller: Caller, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """As RecentLines.read. Raises Overloaded when newer readings take the place of one that follows."""

    async def response(self, ask: Ask, response_id: str) -> bytes:
        """JSON of a response that this node keeps, which is cancelled or deleted if that is asked for.

        Raises an error with status 404 for a response that is not here, BadRequest if it can't be cancelled.
        """

    def events(self, response_id: str, first: int, caller: Caller) -> AsyncGenerator[bytes, None]:
        """The events of a background response that this node keeps, from this number on; empty parts while none comes.

        Raises as `response` does, BadRequest if its events are not kept, Overloaded as `log` does.
        """


class ServingHandler(Protocol):
    def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]: ...

    async def evaluate(self, ring: str, request: EvaluateRequest) -> Evaluation: ...

    async def serve_link(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        """Process the frames of one link, in order, until it ends.

        Raises StaleFence for a ring that this node is not part of, NotAdmitted if the caller is not the previous stage,
        and any failure of the next link: an error ends the link, and thereby reaches the previous stage.
        """


class FilesHandler(Protocol):
    async def listing(self, model: str, revision: str) -> Listing:
        """Raises ModelNotFound, Overloaded."""

    def read(self, model: str, revision: str, name: str, offset: int, length: int) -> AsyncIterator[tuple[bytes, str]]:
        """Yield chunks of `length` bytes of a file from `offset`. If `length` is 0, to the end: then some chunks may be
        empty, and the last one has the SHA-256 of the whole file.

        Raises the same as `listing`.
        """


class KvHandler(Protocol):
    async def find(self, chain: bytes, caller: Caller) -> Sequence[tuple[int, int, int]]:
        """Blocks that are on this node's disk: the place in the chain of each, and its caches [first, end).

        Raises NotAdmitted unless the caller is a node of this cluster.
        """

    def read(self, chain: bytes, caches: range, caller: Caller) -> AsyncGenerator[bytes, None]:
        """Yield these caches of these blocks in their order, until one is not whole. Raises NotAdmitted, Overloaded."""

    async def keep(self, model: str, chain: bytes, parts: AsyncIterator[bytes], caller: Caller) -> None:
        """Write a copy of a block, the last one of the chain, to the disk. Raises NotAdmitted, BadRequest, Overloaded."""

    async def discard(self, chain: bytes, caller: Caller) -> None:
        """Delete these blocks. Raises NotAdmitted."""
