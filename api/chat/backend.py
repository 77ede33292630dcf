"""Interface between the HTTP side and the rest of a node. `node.gateway` implements it; tests script it."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.models import ModelDescription, ModelEntry
from node.core.reports import NodeMetrics
from node.text.grammars import Grammars
from node.text.sandboxed_encoder import OpenModel


class Inference(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yield the tokens one by one; the last has `finish` set. `aclose()` cancels and frees the session at once.

        A refusal (Overloaded, NotReady, ...) is raised before the first token, and possibly before any work is done.
        """

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Score or embed a text. Cancelling it frees the session. Raises the same refusals as `generate`."""


class Backend(Inference, Protocol):
    @property
    def grammars(self) -> Grammars: ...

    def models(self) -> Sequence[ModelEntry]: ...

    def known(self, name: str) -> ModelEntry | None:
        """The one of `models` that a name means, like a short name; None if there is none."""

    async def describe(self, name: str) -> ModelDescription:
        """What is known of one of `models`. Raises ModelNotFound, ModelBroken, and the errors of a transfer."""

    async def open(self, model_id: str, client: str) -> OpenModel:
        """Wait until the model is ready for a client. Raises ModelNotFound, NotReady, NoCapacity and similar errors."""

    def loading(self, model_id: str) -> str:
        """How far the load of a model is, for people; empty if it is not loading."""

    def status(self) -> dict[str, Any]:
        """State of the cluster as this node sees it, ready for JSON."""

    def model_list(self) -> dict[str, Any]:
        """The models that nodes hold or that the cluster wants, ready for JSON."""

    async def load(self, name: str, *, stages: int = 0, context: int = 0) -> dict[str, Any]:
        """Have a model loaded for good, on at least so many nodes and with this maximum context; 0: as other models.

        Returns an object ready for JSON once it has a place. Raises what `open` raises.
        """

    async def unload(self, name: str) -> dict[str, Any]:
        """Have a model unloaded. Raises ModelNotFound, ModelBusy, NotReady."""

    def pull(self, name: str, client: str) -> AsyncGenerator[dict[str, Any], None]:
        """Fetch a model to this node's disk, in the client's turn. Yields the progress, ready for JSON; closing it ends the fetch.

        Raises ModelNotFound, HubUnavailable, NoCapacity (disk full), ….
        """

    async def remove(self, name: str) -> dict[str, Any]:
        """Delete the fetched files of a model from this node's disk. Raises ModelNotFound, ModelBusy."""

    def log(self, node: str, lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """The last lines of the log of a node, in parts, and those that come; empty parts keep it alive.

        `node`: name or id, empty for this one. Raises NodeNotFound, PeerUnavailable, Incompatible.
        """

    async def set_draining(self, node: str, *, draining: bool) -> dict[str, Any]:
        """Drain a node (move its work away), or take it into use again. `node`: name or id.

        Returns an object ready for JSON once the change is decided. Raises NodeNotFound, NotReady, and NoCapacity if a
        model would have no place without the node.
        """

    def metrics(self) -> NodeMetrics:
        """This node's values for `/metrics`."""

    def health(self) -> dict[str, Any]:
        """Whether this node is alive (`status` is "ok" then), and what it can serve. Small and immediate."""
