"""Plan of a model: where it may be cut, which arrays are sent at a cut, and the size of its caches.

Found by a dry run: the model is built from its config alone and run on a few tokens, and the resulting graph of
operations is read. Nothing is computed, and no weights are needed. The plan refuses models that would give wrong
results in stages.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.core.errors import ModelUnsupported
from node.core.mlx_errors import MLX_ERRORS
from node.core.models import KvCost
from node.engine import architectures
from node.engine.caches import can_go_back, can_merge, can_step_back, cost, empty_caches, head_sizes, parts
from node.engine.config_bounds import check_config, check_weight_count
from node.engine.dry_run import LENGTH, PROMPT, ROWS, DryRun, with_short_choices
from node.engine.model_classes import model_classes
from node.model.picture_form import deep_layers

_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

_MAX_CONTEXT = 2**31 - 1
"""Maximum tokens of a context, even if a config has a larger number."""
UNFUSED_CHUNK = 256
"""Tokens of a chunk where attention is not fused: its scores for a long context take much memory. 32 heads, and 32768
tokens, take 0.5 GB in half precision."""
_FUSED_HEADS = {(size, size) for size in (64, 72, 80, 96, 128)}
"""Sizes of keys and values for which MLX fuses the attention of a chunk on all Macs (`use_fallback` in
mlx/backend/metal/scaled_dot_product_attention.cpp). For 192 and 256 it prefers the unfused way, except on an M5."""
_HEAD_KEYS = ("num_attention_heads", "swa_num_attention_heads", "num_query_heads", "num_heads", "n_heads", "n_head")
_PARTS = ("text_config", "llm_config")
"""Keys of the language model's own config, where a config describes several models."""
_CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
    *("max_sequence_length", "model_max_length", "max_context_length", "seq_length"),
)


@dataclass(frozen=True)
class Plan:
    """Properties of a model that are known without its weights."""

    model_type: str
    layers: int
    cuts: tuple[int, ...]
    """Layers before which a stage may start, ascending, without 0."""
    caches_of: tuple[tuple[int, ...], ...]
    """Indexes of the caches that each layer uses."""
    caches: int
    """Number of caches of a session, over all layers; caches that no layer uses are the driver's."""
    carried: Mapping[int, tuple[int, ...]]
    """For each cut, and for the end of the layers: indexes of the arrays to send, in the previous layer's output.
    Usually (0,)."""
    shapes: Mapping[int, tuple[tuple[int, ...], ...]]
    """Shapes of the arrays sent at each cut, with ROWS and LENGTH for the axes that depend on the step."""
    patterns: tuple[Any, ...]
    """Nesting of each layer's output, with its number in place of each array."""
    shared: frozenset[str]
    """Paths of modules outside of the layers that layers after the first read, such as per-layer embeddings."""
    reads_tokens: bool
    """Whether layers after the first need the step's token ids."""
    batchable: bool
    """Whether sessions can share a lane; otherwise each lane has one session."""
    pads: bool
    """Whether the rows of a prefill may be padded on the right."""
    chunked: bool
    """Whether the answer depends on the chunks that a prompt is divided into."""
    trimmable: bool
    """Whether a session's caches can be trimmed to any earlier position."""
    steps_back: bool
    """Whether a session's last step, of one token, can be taken back."""
    embeds: bool
    """Whether the hidden states after the final norm are accessible."""
    kv: tuple[KvCost, ...]
    """Size of each layer's cache for one session."""
    kv_bits: int
    """Bits of a number of the KV; 0: the dtype of the activations."""
    score_bytes: int
    """Bytes of the scores of UNFUSED_CHUNK tokens for each token of the context, in one layer; 0 if attention is fused.
    """
    max_chunk: int
    """Maximum tokens of a chunk where attention is not fused; 0 where it is."""
    max_context: int
    width: int
    """Width of the hidden states behind the final norm."""
    vocabulary: int

    def shapes_at(self, cut: int, rows: int, length: int) -> list[tuple[int, ...]]:
        """Shapes of the arrays sent at a cut in a step of this size; none before the first layer."""
        sizes = {ROWS: rows, LENGTH: length}
        return [tuple(sizes.get(size, size) for size in shape) for shape in self.shapes.get(cut, ())]

    def check_stage(self, start: int, end: int) -> None:
        """Raises ModelUnsupported unless the model can be cut at `start` and `end`."""
        starts, ends = (0, *self.cuts), (*self.cuts, self.layers)
        if start not in starts or end not in ends or start >= end:
            raise ModelUnsupported(
                f"Layers {start} to {end} of {self.layers} are no stage of a {self.model_type} model.",
                hint=f"It can be cut before layers {_ranges(self.cuts)}." if self.cuts else "It cannot be cut.",
            )


def make_plan(
    config: Mapping[str, Any], weight_bytes: int | None = None, kv_bits: int = 0, *, unproven: bool = False
) -> Plan:
    """The plan of a model, from its config.json. Takes about 0.1 s the first time; must run in the compute thread. Raises
    ModelUnsupported, with the reason, for an unsupported model, and ModelBroken for a number that is out of bounds, or
    that does not fit `weight_bytes`, the size of the weights. `unproven`: of any architecture but those known to be wrong.
    """
    return _make_plan(json.dumps(config), weight_bytes, kv_bits, unproven)


@lru_cache(16)  # a model is described, loaded, and loaded again when its layers move
def _make_plan(config_json: str, weight_bytes: int | None, kv_bits: int, unproven: bool) -> Plan:
    config: dict[str, Any] = json.loads(config_json)
    model_type = architectures.check_supported(config, unproven=unproven)
    if kv_bits and (why := architectures.why_unquantizable(model_type)):
        raise _unquantizable(model_type, kv_bits, why)
    check_config(config)
    model = build(with_short_choices(config))
    if weight_bytes is not None:
        check_weight_count(model, weight_bytes)
    try:
        return _plan(model_type, model, config, kv_bits)
    except MLX_ERRORS as error:
        if kv_bits:
            why = f"the size of its heads is no multiple of 32, or its layers read the KV of others ({error!r:.300})"
            raise _unquantizable(model_type, kv_bits, why) from error
        raise ModelUnsupported(f"The {model_type} model of this config.json does not run: {error!r:.500}") from error


def _unquantizable(model_type: str, kv_bits: int, why: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"The KV of this {model_type} model cannot be in {kv_bits} bits: {why}.",
        hint="Start the head without --kv-bits.",
    )


def _plan(model_type: str, model: Module, config: Mapping[str, Any], kv_bits: int) -> Plan:
    # mlx-vlm's classes compute a step of a few tokens at once, unless they train; here nothing is to be computed.
    model.train(architectures.is_of_mlx_vlm(model_type))
    caches = empty_caches(model, kv_bits)
    run = DryRun(model, caches, activation_dtype(config))
    cuts, carried = run.cuts()
    deep = deep_layers(config)
    sizes_of = run
    if any(len(leaves) > 1 for leaves in carried.values()) and config != with_short_choices(config):
        # What is sent may be what was chosen, of which there are more without short choices.
        whole = build(config)
        whole.train(model.training)
        sizes_of = DryRun(whole, empty_caches(whole, kv_bits), activation_dtype(config))
    # Computes nothing. What layers keep of a prompt may be more than of a short first step.
    filled = empty_caches(model, kv_bits)
    model(mx.zeros((1, PROMPT), mx.int32), cache=filled)
    kv: list[KvCost] = []
    paid: set[int] = set()
    for used in run.caches_of:
        kv.append(cost(filled[k] for k in used if k not in paid))
        paid.update(used)
    sizes = head_sizes(caches)
    # MLX fuses no quantized attention.
    is_fused = sizes <= _FUSED_HEADS and model_type not in architectures.UNFUSED and not kv_bits
    score_bytes = 0 if is_fused or not sizes else _heads(config) * activation_dtype(config).size * UNFUSED_CHUNK
    each = list(parts(caches))
    batchable = all(map(can_merge, each)) and model_type not in architectures.UNBATCHABLE
    return Plan(
        model_type=model_type,
        layers=run.count,
        cuts=tuple(cut for cut in cuts if cut >= deep),
        caches_of=run.caches_of,
        caches=len(caches),
        carried=carried,
        shapes={cut: sizes_of.shapes(cut, leaves) for cut, leaves in carried.items()},
        patterns=tuple(run.patterns),
        shared=run.shared,
        reads_tokens=run.reads_tokens,
        batchable=batchable,
        pads=batchable and model_type not in architectures.UNPADDED,
        chunked=model_type in architectures.CHUNKED,
        trimmable=all(map(can_go_back, each)),
        steps_back=all(map(can_step_back, each)),
        embeds=model_type not in architectures.WITHOUT_EMBEDDINGS,
        kv=tuple(kv),
        kv_bits=kv_bits,
        score_bytes=score_bytes,
        max_chunk=UNFUSED_CHUNK if score_bytes else 0,
        max_context=max_context(config),
        width=_width(config, run.width),
        vocabulary=run.vocabulary,
    )


def build(config: Mapping[str, Any]) -> Module:
    """Build the model. Its weights are not evaluated, so it takes no memory. Raises ModelUnsupported if mlx-lm cannot."""
    try:
        model_class, args_class = model_classes(config)
        model: Module = model_class(args_class.from_dict(dict(config)))
    except MLX_ERRORS as error:
        raise ModelUnsupported(
            f"mlx-lm cannot build a {config.get('model_type')} model from this config.json: {error!r}"
        ) from error
    model.eval()
    mask_what_is_there(model)
    return model


def mask_what_is_there(model: Module) -> None:
    """Of a hybrid model that has no recurrent layer, as those of an MTP layer, make mlx-lm's code want no mask for such."""
    for module in model.modules():  # type: ignore[no-untyped-call]
        if getattr(module, "ssm_idx", None) is None:
            continue
        recurrent = [getattr(each, "is_linear", getattr(each, "block_type", "M") == "M") for each in module.layers]
        if not any(recurrent):
            module.ssm_idx = slice(0)  # of the caches: none


def max_context(config: Mapping[str, Any]) -> int:
    """Maximum sequence length of the model in tokens; 32768 if its config has none."""
    for part in parts_of(config):
        for key in _CONTEXT_KEYS:
            value = part.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return min(value, _MAX_CONTEXT)
    return 32768


def parts_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config, and that of the language model in it."""
    return [part for part in (config, *map(config.get, _PARTS)) if isinstance(part, Mapping)]


def _width(config: Mapping[str, Any], of_layers: int) -> int:
    """Of the hidden states behind the final norm. `of_layers`: of a layer's output, which may be that of several streams."""
    found = [part["hidden_size"] for part in parts_of(config) if isinstance(part.get("hidden_size"), int)]
    return int(found[-1]) if found else of_layers


def _heads(config: Mapping[str, Any]) -> int:
    """Heads of the layer with the most; the numbers may be a list."""
    found = [part.get(key) for part in parts_of(config) for key in _HEAD_KEYS]
    numbers = [number for each in found for number in (each if isinstance(each, list) else [each])]
    return max((number for number in numbers if isinstance(number, int)), default=1)


def activation_dtype(config: Mapping[str, Any]) -> mx.Dtype:
    """Dtype of the activations according to the config; float32, the largest, if it has none."""
    names = [str(part.get("dtype") or part.get("torch_dtype")).removeprefix("torch.") for part in parts_of(config)]
    return next((_DTYPES[name] for name in names if name in _DTYPES), mx.float32)


def _ranges(numbers: Sequence[int]) -> str:
    """Format 1, 2, 3, 6 as "1-3, 6"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
