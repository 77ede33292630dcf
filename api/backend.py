"""What the HTTP side asks of the rest of a node. `node.serving` implements it; tests have a scripted one."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.types import ModelEntry, Work
from node.engine.grammars import Grammars
from node.engine.texts import Texts
from node.engine.tokenizer import Tokenizer


class Model(Protocol):
    """A model that is loaded and may be asked at once."""

    @property
    def id(self) -> str: ...

    @property
    def context(self) -> int:
        """Longest sequence, prompt and answer together, in tokens."""

    @property
    def tokenizer(self) -> Tokenizer:
        """For tokens; texts of requests are left to `texts`."""

    @property
    def texts(self) -> Texts: ...

    @property
    def revision(self) -> str:
        """Of the files that the tokenizer is made of; requests name it."""


class Backend(Protocol):
    @property
    def grammars(self) -> Grammars: ...

    def models(self) -> Sequence[ModelEntry]: ...

    async def open(self, model_id: str) -> Model:
        """Wait until the model may be asked. Raises ModelNotFound, NotReady, NoCapacity and their like."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yield the tokens one by one; the last has `finish`. `aclose()` cancels and frees the session at once.

        A refusal (Overloaded, NotReady, ...) is raised before the first token, and may be raised before any work.
        """

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Score or embed a text. Cancelling it frees the session. Refusals are those of `generate`."""

    def status(self) -> dict[str, Any]:
        """The cluster as this node sees it, ready for JSON."""

    async def drain(self, node: str, *, draining: bool) -> dict[str, Any]:
        """Have a node's work moved away, or take it into use again, by its name or id; ready for JSON once it is decided.

        Raises NodeNotFound, NoCapacity when a model would have no place without it, NotReady.
        """

    def work(self) -> Work:
        """What this node does at the moment."""

    def health(self) -> dict[str, Any]:
        """Small and at once: whether this node lives (`status` is "ok" then), and what it can serve."""
