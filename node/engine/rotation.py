"""Rotary embeddings of layers at positions that are not the numbers of the tokens: see node.core.axes.

Models of mlx-vlm are told positions. In mlx-lm's, layers ask a module of their own, with the number of the first token. Inside
`at` it is asked with the position; only the places of pictures, whose position differs from axis to axis, are turned here: each
pair of numbers by the axis that the config names (`mrope_section` of transformers' Qwen2-VL; in Qwen3.5 the axes alternate).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.positional_encoding import RoPE

from node.core.axes import Span
from node.core.errors import ModelUnsupported
from node.engine.ghosts import Place, replaced_calls

_ALTERNATING = ("qwen3_5", "qwen3_vl")
"""Models whose axes alternate, whether or not their configs say so: by the beginning of the text model's type."""


class Rotation:
    """Of some layers of a model."""

    def __init__(self, layers: Sequence[Module], config: Mapping[str, Any]) -> None:
        """`config`: of the text model. Raises ModelUnsupported for a model whose layers do it in another way."""
        self._places: list[Place] = [
            (parent, "rope", parent["rope"])
            for layer in layers
            for parent in layer.modules()  # type: ignore[no-untyped-call]
            if "rope" in parent
        ]
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        sections = scaling.get("mrope_section") or ()
        alternate = scaling.get("mrope_interleaved") or str(config.get("model_type")).startswith(_ALTERNATING)
        if alternate:  # time, height and width in turn, as far as the last two go; the rest is time's
            self._axes = [k % 3 if k < 3 * sections[k % 3] else 0 for k in range(sum(sections))]
        else:
            self._axes = [axis for axis, size in enumerate(sections) for _ in range(size)]
        for _, _, rope in self._places:
            if not isinstance(rope, RoPE) or rope.traditional or rope.scale != 1 or 2 * len(self._axes) != rope.dims:
                raise ModelUnsupported(f"Pictures do not fit the rotary embedding of this model: {rope}, {sections}.")

    def at(self, _: Sequence[Any], shifts: Sequence[int], spans: Sequence[Span]) -> AbstractContextManager[None]:
        """`shifts`: of each row; `spans`: of the tokens of the only row, if there are any."""
        shift = mx.array(list(shifts)) if len(shifts) > 1 else next(iter(shifts), 0)

        def act(rope: Any, x: mx.array, offset: Any = 0) -> mx.array:
            return self._turned(rope, x, spans) if spans else rope(x, offset=offset + shift)

        return replaced_calls(self._places, act)

    def _turned(self, rope: Any, x: mx.array, spans: Sequence[Span]) -> mx.array:
        """`x`: [1, heads, length, size of a head]."""
        parts, begin, half = list[mx.array](), 0, len(self._axes)
        for span in spans:
            part = x[:, :, begin : begin + span.tokens]
            begin += span.tokens
            if not span.columns:
                parts.append(rope(part, offset=span.base))
                continue
            frequencies = 1.0 / (rope.base ** (mx.arange(0, rope.dims, 2).astype(mx.float32) / rope.dims))
            angles = _positions(span)[mx.array(self._axes)].T.astype(mx.float32) * frequencies
            cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
            one, other, rest = part[..., :half], part[..., half : 2 * half], part[..., 2 * half :]
            parts.append(mx.concatenate([one * cos - other * sin, other * cos + one * sin, rest], axis=-1))
        return mx.concatenate(parts, axis=2)


class Positions:
    """Of a model of mlx-vlm that is told the positions of a step's tokens: [3, rows, length]."""

    def __init__(self, model: Module) -> None:
        """Raises ModelUnsupported for a model whose axes do not fit its heads."""
        self._place: Place = (model, "language_model", model["language_model"])
        for module in model.modules():  # type: ignore[no-untyped-call]
            rope = getattr(module, "rotary_emb", None)
            if rope is not None and 2 * sum(rope.mrope_section) != rope.dim:
                raise ModelUnsupported(f"Pictures do not fit the {rope.dim} numbers of heads: {rope.mrope_section}.")

    def at(self, _: Sequence[Any], shifts: Sequence[int], spans: Sequence[Span]) -> AbstractContextManager[None]:
        """As of Rotation."""

        def act(text: Any, tokens: mx.array, cache: Sequence[Any]) -> Any:
            if spans:
                positions = mx.concatenate([_positions(span) for span in spans], axis=1)[:, None]
            else:
                begin = cache[text.model.fa_idx].offset + mx.array(list(shifts))[:, None]
                positions = mx.broadcast_to(begin + mx.arange(tokens.shape[1]), (3, *tokens.shape))
            return text(tokens, cache=cache, position_ids=positions)

        return replaced_calls([self._place], act)


def _positions(span: Span) -> mx.array:
    """In each axis: [3, tokens]."""
    if not span.columns:
        return mx.broadcast_to(mx.arange(span.base, span.base + span.tokens), (3, span.tokens))
    places = mx.arange(span.first, span.first + span.tokens)
    return mx.stack([mx.zeros_like(places), places // span.columns, places % span.columns]) + span.base
