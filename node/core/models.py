"""Descriptions of models. Messages on the wire have the same fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KV_BITS = (4, 8)
"""Bits that a number of the KV may have, instead of those of the activations."""

DRAFT_CONTEXT = 8192
"""Maximum tokens of a session in which a draft model guesses: KV is set aside for one session of that length. That of
small models is hardly smaller than that of large ones: 0.9 GB for Qwen3 0.6B.
"""


@dataclass(frozen=True, slots=True, order=True)
class HeldModel:
    """A model whose files are complete on a node.

    `revision`: commit of the hub, or fingerprint of a local directory. Layers, tokenizer and KV of different revisions
    are never combined.
    """

    id: str
    revision: str = ""
    bytes: int = field(default=0, compare=False)
    """Size of its weights; 0 if the node does not tell it."""


@dataclass(frozen=True, slots=True, order=True)
class ModelVersion:
    """What rings and layers in memory are of: a model, in one revision of its files, with one kind of KV.

    Layers and KV of different versions are never combined. In messages its fields are those of the message around it.
    """

    model: str
    """Id of the model."""
    revision: str = ""
    kv_bits: int = 0
    """Bits of a number of the KV, 8 or 4, from the head's --kv-bits; 0: the dtype of the activations."""

    @property
    def files(self) -> HeldModel:
        return HeldModel(self.model, self.revision)


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """The layers [start, end) of a model."""

    version: ModelVersion
    start: int
    end: int

    @property
    def model(self) -> str:
        return self.version.model


@dataclass(frozen=True, slots=True, order=True)
class DraftChoice:
    """A node's wish, from --draft, that `draft` guesses tokens of `model`. Both are ids."""

    model: str
    draft: str


@dataclass(frozen=True, slots=True, order=True)
class Alias:
    """A node's wish, from --alias, that requests for `name` are for `model`: some clients insist on names of their own."""

    name: str
    model: str
    """Id or short name, as the user wrote it."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A node's wish, from --sampling, how requests for `model` are sampled that do not say it."""

    model: str
    """Id, short name or alias, as the user wrote it."""
    sampling: Mapping[str, float]
    """Values of `node.core.generation.RANGES`."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How a user wants a model to be placed, from `cluster load`."""

    named: bool = False
    """Whether it stays loaded, like a model of --model."""
    stages: int = 0
    """Minimum number of nodes to spread it over; 0: the largest --stages of any node."""
    context: int = 0
    """Maximum context in tokens; 0: what the head gives to all models."""
    despite: int = 0
    """Crashes up to this time (Crash.at) do not keep it from being loaded: the user knew of them."""
    keep_s: float | None = None
    """Unless it is named, unload it when it was idle for so many seconds; None: as --keep-alive says."""


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of one layer's cache for one session: `fixed + per_token * min(tokens, window)`; window 0: unbounded."""

    per_token: int
    fixed: int = 0
    window: int = 0

    def bytes_for(self, tokens: int) -> int:
        return self.fixed + self.per_token * (min(tokens, self.window) if self.window else tokens)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What placement needs to know of a model; derived from its config and the headers of its files."""

    version: ModelVersion
    layer_bytes: tuple[int, ...]
    """Bytes of each layer's weights."""
    ends_bytes: int
    """Bytes of all other weights, which the driver holds: embedding, final norm, LM head."""
    kv: tuple[KvCost, ...]
    """Cache cost of each layer."""
    cuts: tuple[int, ...]
    """The layers before which a stage may start, ascending, without 0."""
    max_context: int
    """Maximum sequence length of the model, in tokens."""
    shared_ends: bool = False
    """Whether layers read weights of the ends (per-layer embeddings), so that every stage holds the ends."""
    head_bytes: int = 0
    """Bytes of the ends that the driver reads for each token: the LM head's. Of a separate embedding it reads one row."""
    score_bytes: int = 0
    """Bytes of the attention scores of one chunk, for each token of the context; 0 where attention is fused."""
    picture_bytes: int = 0
    """Working memory of the vision tower, at the largest picture; 0 for a model without one. Its weights are among the ends."""
    wish: Wish = Wish()
    """It travels with the placement, so that the next head has it."""
    draft: "ModelSpec | None" = None
    """A small model that guesses tokens of this one, from --draft. It has no draft itself."""
    mtp: "ModelSpec | None" = None
    """The layer for multi-token prediction, which follows the model's layers: its own, or that of a model named by --draft. It is
    asked unless there is a draft. Its ends are what it has beside the layer; embedding and LM head are the model's.
    """

    @property
    def id(self) -> str:
        return self.version.model

    @property
    def layers(self) -> int:
        return len(self.layer_bytes)

    @property
    def guesser(self) -> "ModelSpec | None":
        """What guesses this model's tokens on the driver, if anything does."""
        return self.draft or self.mtp

    @property
    def guesses_alone(self) -> bool:
        """Whether what guesses is of use in a ring of one stage: in steps of several tokens only, of which wrong ones are taken back one
        by one. Windows and recurrent states can't be.
        """
        return all(cost.per_token and not cost.window for cost in self.kv)

    @property
    def weight_bytes(self) -> int:
        return sum(self.layer_bytes) + self.ends_bytes

    def driver_bytes(self, stages: int) -> int:
        """Bytes that a ring's driver reads for each token beside its layers: the head, and what guesses if there are several
        stages.
        """
        guesser = self.guesser if stages > 1 else None
        if guesser is None:
            return self.head_bytes
        head_bytes = guesser.head_bytes if self.draft else guesser.ends_bytes + self.head_bytes
        return self.head_bytes + sum(guesser.layer_bytes) + head_bytes


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Description of a tensor in the header of its file."""

    file: str
    dtype: str
    """Name in safetensors, such as `BF16`."""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that the cluster can serve, for `GET /v1/models`."""

    id: str
    created: int
    """Unix seconds."""
    owned_by: str
    revision: str = ""
    """Of the model that is served, or else of one that a node holds; empty if no node tells it."""
    bytes: int = 0
    """Size of its weights; 0 if no node tells it."""
    model: str = ""
    """Id of the model that it stands for: another one if it is an alias."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its config.json, which has a `model_type`; empty if it is not known here."""
    context: int = 0
    """Tokens that a request may have: those of its ring; of a model without one, those of its config; 0 as for `config`."""
    parameters: int = 0
    """Number of its parameters; 0 if it is not known here."""
    takes_pictures: bool = False
    """As far as is known here."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model's small files tell of it."""

    entry: ModelEntry
    """With its config and its context."""
    template: str
    """Its chat template in Jinja; empty if there is none."""
    embeds: bool
    license: str = ""
    """The text of its license, if it is among its files."""
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sampling of requests that do not say it, as far as the model or a preset does."""
    fills_in: bool = False
    """Whether its tokenizer has marks for the text between two others."""
