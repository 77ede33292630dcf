"""Interface between the HTTP side and the rest of a node. `node.gateway` implements it; tests script it."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.models import ModelEntry
from node.core.types import NodeMetrics
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

    async def open(self, model_id: str) -> OpenModel:
        """Wait until the model is ready. Raises ModelNotFound, NotReady, NoCapacity and similar errors."""

    def status(self) -> dict[str, Any]:
        """State of the cluster as this node sees it, ready for JSON."""

    async def set_draining(self, node: str, *, draining: bool) -> dict[str, Any]:
        """Drain a node (move its work away), or take it into use again. `node`: name or id.

        Returns an object ready for JSON once the change is decided. Raises NodeNotFound, NotReady, and NoCapacity if a
        model would have no place without the node.
        """

    def metrics(self) -> NodeMetrics:
        """This node's values for `/metrics`."""

    def health(self) -> dict[str, Any]:
        """Whether this node is alive (`status` is "ok" then), and what it can serve. Small and immediate."""
