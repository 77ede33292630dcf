"""The layer for multi-token prediction (MTP) that some models bring: from a token's hidden states, and from the token after
it, it guesses the one after that. In Nemotron-H it is several layers: one of attention, and one of experts.

With E the embedding of the next token, and h the hidden states that the model's last layer gave, or its final norm:

    x = projection([norm_e(E); norm_h(h)])        (MiMo: [norm_h(h); norm_e(E)])
    logits = LM head(norm(layer(x)))              with the model's own embedding and LM head

(DeepSeek-V3, arXiv:2412.19437, section 2.2; Qwen3-Next, GLM-4.5, MiMo, Step-3.5 and Nemotron-H use the same form.) `layer` is of the
model's own kinds. So it is loaded as a model of the family that has nothing else, whose embedding is replaced by the projection:
formats, attention and caches are mlx-lm's. What mlx-lm's `sanitize` drops, it gets here as tensors of layer 0 and those after it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm

from node.core.errors import ModelUnsupported
from node.core.models import TensorHeader
from node.engine.architectures import module_of
from node.engine.plan import mask_what_is_there, parts_of

Sanitize = Callable[[dict[str, mx.array]], dict[str, mx.array]]

_FUSE = "fuse."
"""Where the small model has the modules before its layers."""
_CHANGES: Mapping[str, Any] = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "full_attention_interval": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
"""Make the only layer one of the kind of the MTP layer: attention to all, and experts if the model has any."""
_KINDS: Mapping[str, str] = {"attention": "*", "full_attention": "*", "moe": "E", "mlp": "-"}
"""mlx-lm's letters for the kinds of layers that Nemotron-H's MTP may have, by what its configs call them if not so."""
_PATTERNS = ("hybrid_override_pattern", "layers_block_type", "layer_types")
"""Where its configs tell the kinds of the model's own layers: the first that there is, as mlx-lm has it."""
_BY_LAYER = ("layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared")
"""Lists that may have an entry for each layer, those of MTP behind the model's own: then the only layer gets the first of these."""
_SHARED = ("embed_tokens.", "shared_head.head.", "shared_head.output.", "transformer.shared_head.output.")
"""Copies of the model's own embedding and LM head in checkpoints."""
_EMBEDDINGS = ("embed_tokens", "embeddings")
"""What mlx-lm's models call theirs."""


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of some architectures name the tensors of their MTP layer, and how it computes."""

    places: tuple[str, ...]
    """What all its tensors begin with; {layers}: the number of the model's layers."""
    layer: str
    """What the tensors of the decoder layer begin with, after that."""
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    hidden_first: bool = False
    """The projection takes the hidden states before the embedding."""
    takes_normed: bool = True
    """It takes the hidden states after the model's final norm."""
    zero_centred: bool = False
    """Weights of norms are stored as their difference from one, in checkpoints that are not converted."""
    several: bool = False
    """The config tells how many layers it has, and of which kinds. Their tensors have the layer's number after `layer`; {last} in `norm` is
    the last one's.
    """
    trunk: str = "model."
    """What the names of layers and final norm begin with in mlx-lm's models of the family."""
    final_norm: str = "norm"
    eps: str = "rms_norm_eps"
    """What configs call the number that norms add."""

    def begin(self, layers: int, names: Mapping[str, Any]) -> str | None:
        """What the tensors' names begin with in this checkpoint; None if it has no such layer."""
        places = [place.format(layers=layers) for place in self.places]
        return next((place for place in places if f"{place}{self.projection}.weight" in names), None)

    def renamed(self, name: str) -> str | None:
        """The name in the small model for the rest of a tensor's name; None for a copy of the model's own."""
        own = {
            self.embedding_norm: f"{_FUSE}embedding_norm",
            self.hidden_norm: f"{_FUSE}hidden_norm",
            self.projection: f"{_FUSE}projection",
            self.norm: self.final_norm,
        }
        module, _, kind = name.rpartition(".")
        if module in own:
            return f"{self.trunk}{own[module]}.{kind}"
        if name.startswith(_SHARED):
            return None
        number = "" if self.several else "0."
        return f"{self.trunk}layers.{number}{name.removeprefix(self.layer)}"


_DEEPSEEK = Family(("model.layers.{layers}.",), "", "enorm", "hnorm", "eh_proj", "shared_head.norm")
_QWEN = Family(
    ("mtp.", "model.mtp.", "language_model.mtp.", ""),
    *("layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    zero_centred=True,
)
_MIMO = Family(
    ("model.mtp_layers.0.",),
    *("", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    hidden_first=True,
    takes_normed=False,
)
_STEP = Family(
    ("model.layers.{layers}.",),
    *("", "enorm", "hnorm", "eh_proj", "transformer.shared_head.norm"),
    takes_normed=False,
    zero_centred=True,
)
_NEMOTRON = Family(
    ("mtp.",),
    *("layers.", "layers.0.enorm", "layers.0.hnorm", "layers.0.eh_proj", "layers.{last}.final_layernorm"),
    several=True,
    trunk="backbone.",
    final_norm="norm_f",
    eps="layer_norm_epsilon",
)
_PLAIN = Family(("mtp.",), "layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"), _DEEPSEEK),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_next"), _QWEN),
    "mimo": _MIMO,
    "nemotron_h": _NEMOTRON,
    "step3p5": _STEP,
    "llama": _PLAIN,
}
"""By architecture. The built-in model's is named as Qwen's, with plain norms; no published Llama has one."""

_BASES = {"qwen3_5_mtp": ("qwen3_5", "qwen3_5_moe"), "glm4_moe_lite_mtp": ("glm4_moe_lite",) * 2}
"""Model types of folders that hold nothing but the layer; and the model's type without experts, and with."""


@dataclass(frozen=True, slots=True)
class Mtp:
    """The MTP layer of a checkpoint."""

    family: Family
    layers: int
    """Number of the model's layers; the MTP layer follows them."""
    config: dict[str, Any]
    """Of the small model."""
    names: Mapping[str, str]
    """Of each of its tensors, the name in the small model, by that in the files."""
    copies: frozenset[str]
    """Tensors beside them that are copies of the model's own."""
    is_alone: bool
    """The folder holds nothing else."""
    shifts: bool
    """One has to be added to the weights of norms that mlx-lm's `sanitize` leaves as they are."""

    def without(self, held: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The tensors of the model itself."""
        return {name: value for name, value in held.items() if name not in self.names and name not in self.copies}

    def sanitized(self, sanitize: Sanitize | None, held: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Of all tensors of the files, those of the small model, as its class takes them."""
        given = {new: held[old] for old, new in self.names.items()}
        unchanged = {id(value) for value in given.values()}
        found = sanitize(dict(given)) if sanitize else given
        if not self.shifts:
            return found
        return {
            name: value + 1 if value.ndim == 1 and "norm" in name and id(value) in unchanged else value
            for name, value in found.items()
        }


def find_mtp(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> Mtp | None:
    """The MTP layer of a checkpoint of any type, supported or not; None if it has none, or one of an unknown form."""
    part = parts_of(config)[-1]
    if bases := _BASES.get(str(config.get("model_type"))):
        config = {**config, "model_type": bases[bool(part.get("num_experts"))]}
    try:
        family = FAMILIES.get(module_of(config))
    except ModelUnsupported:
        return None
    if family is None:
        return None
    layers, kinds = _nemotron_layers(part) if family.several else (part.get("num_hidden_layers"), [""])
    if not kinds or not isinstance(layers, int):
        return None
    family = replace(family, norm=family.norm.format(last=len(kinds) - 1))
    begin = family.begin(layers, tensors)
    if begin is None:
        return None
    # An empty beginning is that of a folder with nothing but the layer.
    rest = {name: family.renamed(name[len(begin) :]) for name in tensors if name.startswith(begin)}
    names = {name: new for name, new in rest.items() if new}
    # What is not converted has convolutions of another shape, or experts of another name.
    raw = any(
        (name.endswith("conv1d.weight") and tensor.shape[-1] != 1) or ".moe." in name
        for name, tensor in tensors.items()
    )
    copies = frozenset(rest.keys() - names.keys())
    small = _small_config(config, family, begin, layers)
    if family.several:
        small |= {"hybrid_override_pattern": kinds, "num_hidden_layers": len(kinds)}
    return Mtp(family, layers, small, names, copies, not begin, family.zero_centred and raw)


def _nemotron_layers(config: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    """The number of Nemotron-H's layers, as mlx-lm counts them, whatever else the config says. And the kinds of its MTP layers, in mlx-lm's
    letters; empty if one is of an unknown kind, or of one that is not supported.
    """
    own = next((config[key] for key in _PATTERNS if config.get(key) is not None), None)
    told = config.get("mtp_hybrid_override_pattern") or config.get("mtp_layers_block_type") or "*E"
    kinds = [_KINDS.get(str(each), str(each)) for each in told] if isinstance(told, str | list) else []
    layers = len(own) if isinstance(own, str | list) else None
    return layers, kinds if set(kinds) <= set(_KINDS.values()) else []


def _small_config(config: Mapping[str, Any], family: Family, begin: str, layers: int) -> dict[str, Any]:
    one = {**config, **_CHANGES, **_own_entries(config, layers)}
    if isinstance(text := config.get("text_config"), Mapping):
        one = {**config, "text_config": {**text, **_CHANGES, **_own_entries(text, layers)}}
    for key in ("quantization", "quantization_config"):
        if isinstance(settings := config.get(key), Mapping):
            one[key] = _own_settings(settings, family, begin)
    return one


def _own_entries(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """What a config says of the MTP layer, as of the only one."""
    lists = {key: value for key in _BY_LAYER if isinstance(value := config.get(key), list) and len(value) > layers}
    own: dict[str, Any] = {key: [value[layers]] for key, value in lists.items()}
    if isinstance(experts := config.get("moe_layers_enum"), str):  # the numbers of the layers with experts
        own["moe_layers_enum"] = "0" if str(layers) in experts.split(",") else ""
    return own


def _own_settings(settings: Mapping[str, Any], family: Family, begin: str) -> dict[str, Any]:
    """Those of all modules, and those of the MTP layer's modules, by their paths in the small model."""
    own: dict[str, Any] = {}
    for path, value in settings.items():
        if "." not in path:
            own[path] = value
        elif begin and path.startswith(begin) and (new := family.renamed(path[len(begin) :] + ".weight")):
            new = new.removesuffix(".weight")
            own |= {new: value, f"language_model.{new}": value}
    return own


class Fuse(Module):
    """Makes the layer's input of a token's embedding and the hidden states of the token before it."""

    def __init__(self, width: int, eps: float, *, hidden_first: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embedding_norm = RMSNorm(width, eps)
        self.hidden_norm = RMSNorm(width, eps)
        self.projection = Linear(2 * width, width, bias=False)
        self._hidden_first = hidden_first

    def __call__(self, embedded: mx.array, hidden: mx.array) -> mx.array:
        both = [self.embedding_norm(embedded), self.hidden_norm(hidden)]
        joined = mx.concatenate(both[::-1] if self._hidden_first else both, axis=-1)
        fused: mx.array = self.projection(joined)
        return fused


class Ends:
    """The embedding and the LM head of the model, in the place of those of the small model.

    No module, so that neither their weights nor their memory count as the layer's: they are the driver's.
    """

    def __init__(self, fuse: Fuse, takes_normed: bool, width: int) -> None:
        self._fuse = fuse
        self._width = width
        self.takes_normed = takes_normed
        self.hidden: mx.array | None = None
        """Hidden states [rows, length, width] that go with the tokens of the next step; None for a step's end."""
        self.embed: Callable[[mx.array], mx.array] | None = None
        self.score: Callable[[mx.array], mx.array] | None = None
        """The LM head. Both are None while the layer is loaded and warmed up."""

    def __call__(self, tokens: mx.array) -> mx.array:
        hidden = mx.zeros((*tokens.shape, self._width), self._fuse.embedding_norm.weight.dtype)
        hidden = hidden if self.hidden is None else self.hidden
        return self._fuse(self.embed(tokens) if self.embed else hidden, hidden)

    def as_linear(self, hidden: mx.array) -> mx.array:
        """The logits, whether the model's embedding and LM head are one or not."""
        return self.score(hidden) if self.score else hidden


def with_ends(model: Module, mtp: Mtp) -> None:
    """Make a model of the small config compute as the MTP layer does."""
    part = parts_of(mtp.config)[-1]
    width = part["hidden_size"]
    (trunk, embedding), (outer, _) = _holder(model, *_EMBEDDINGS), _holder(model, "lm_head")
    trunk.fuse = Fuse(width, part[mtp.family.eps], hidden_first=mtp.family.hidden_first)
    model.ends = Ends(trunk.fuse, mtp.family.takes_normed, width)
    setattr(trunk, embedding, model.ends)
    if outer is not None:
        outer.lm_head = model.ends.as_linear
    mask_what_is_there(model)


def ends_of(model: Module) -> tuple[Callable[[mx.array], mx.array], Callable[[mx.array], mx.array]]:
    """The embedding and the LM head of a model. Raises ModelUnsupported."""
    (inner, name), (outer, _) = _holder(model, *_EMBEDDINGS), _holder(model, "lm_head")
    if inner is None:
        raise ModelUnsupported(f"The MTP layer does not find the embedding of a {type(model).__module__} model.")
    embedding = inner[name]
    return embedding, outer["lm_head"] if outer is not None else embedding.as_linear


def _holder(model: Module, *names: str) -> tuple[Any, str]:
    """The module that has one of these names, and that name; None and no name if there is none."""
    modules = cast(Sequence[Module], model.modules())  # type: ignore[no-untyped-call]
    return next(((module, name) for name in names for module in modules if name in module), (None, ""))
