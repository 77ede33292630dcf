"""What the RPC server asks of the rest of the node."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import Frame
from node.core.generation import GenerateRequest, TokenEvent
from node.core.types import Caller, Heartbeat, ModelSpec, NodeInfo


class ControlHandler(Protocol):
    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        """Take a peer's state, its own if that can be proven, and give one's own. Raises Incompatible for another cluster's."""

    def leave(self, node_id: str, incarnation: int) -> None: ...

    def prove(self, nonce: bytes) -> tuple[NodeInfo, bytes]:
        """This process, and its signature with the node's key; of 32 bytes."""

    async def want(self, model: str) -> None:
        """As the head: have the model loaded. Raises NotReady when this node is not the head, ModelNotAllowed, …"""

    async def drain(self, node: str, *, draining: bool) -> None:
        """As the head: have a node's work moved away, or take it into use again. Raises NotReady, NoCapacity."""

    def set_draining(self, node: str, caller: Caller, *, draining: bool) -> None:
        """From the head. Raises NodeNotFound when this is another node, NotAdmitted when the caller is not the head."""

    async def describe(self, model: str, revision: str) -> ModelSpec:
        """Of a model whose files are here; of any revision if that is empty. Raises ModelNotFound."""


class ServingHandler(Protocol):
    def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]: ...

    async def evaluate(self, ring: str, request: EvaluateRequest) -> Evaluation: ...

    async def frames(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        """Take what comes over one link, in order, until it ends.

        Raises StaleFence for a ring that this node is not part of, NotAdmitted when the caller is not the stage before, and
        whatever breaks the way onward: the error ends the link and so reaches the stage before.
        """


class FilesHandler(Protocol):
    async def listing(self, model: str, revision: str) -> list[tuple[str, int]]:
        """Names and sizes in bytes. Raises ModelNotFound, Overloaded."""

    def read(self, model: str, revision: str, name: str, offset: int) -> AsyncIterator[tuple[bytes, str]]:
        """Chunks of a file from `offset`, some empty; the last one carries the whole file's SHA-256. Raises what `listing` does."""
