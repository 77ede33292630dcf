"""A pass is divided into pieces, with the bits that it has as a whole."""

from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.activations import GELU, silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.convolution import Conv3d
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm

from node.engine import pieces
from node.engine.pieces import Part, in_pieces, recorded


class Block(Module):
    """One of a list of layers: a norm, a matrix and attention to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.qkv = RMSNorm(width), Linear(width, 3 * width)
        self.heads = heads

    def __call__(self, x: mx.array, mask: Any = None) -> mx.array:
        heads = self.qkv(self.norm(x)).reshape(1, x.shape[1], 3 * self.heads, -1).transpose(0, 2, 1, 3)
        seen = mx.fast.scaled_dot_product_attention(*mx.split(heads, 3, axis=1), scale=0.125, mask=mask)
        return x + seen.transpose(0, 2, 1, 3).reshape(x.shape)


class Pass(Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.layers = [Block(width, heads) for _ in range(layers)]

    def __call__(self, x: mx.array, mask: Any = None) -> mx.array:
        for layer in self.layers:
            x = layer(x, mask)
        return x


@pytest.fixture
def model() -> Pass:
    mx.random.seed(3)
    return Pass(256)


def recorded_of(model: Pass, x: mx.array, mask: Any = None) -> tuple[list[Part], mx.array]:
    with recorded(model) as parts:
        output = model(x, mask)
    return parts, output


@pytest.mark.parametrize(("most", "count"), [(4 * 301**2, 1), (3 * 301**2, 2), (301**2, 4), (90_000, 8), (20_000, 20)])
@pytest.mark.parametrize("kind", ["none", "rows", "columns", "heads", "causal"])
def test_attention_is_divided_by_heads_and_rows(
    model: Pass, monkeypatch: Any, most: int, count: int, kind: str
) -> None:
    x = mx.random.normal((1, 301, 256))
    shapes = {"rows": (301, 301), "columns": (1, 1, 1, 301), "heads": (1, 4, 301, 301)}
    mask: Any = mx.random.uniform(shape=shapes[kind]) < 0.9 if kind in shapes else {"causal": "causal"}.get(kind)
    expected = model(x, mask)
    monkeypatch.setattr(pieces, "MOST_SCORES", most)
    parts, output = recorded_of(model, x, mask)
    of_attention = [part for part in parts if part.kind[0] == "attention"]  # type: ignore[index]
    assert len(of_attention) == 2 * (1 if kind == "causal" else count)
    list(in_pieces(parts, 0.0))
    assert mx.array_equal(output, expected)
    assert parts == []


def test_heads_that_share_keys(model: Pass, monkeypatch: Any) -> None:
    q, k, v = (mx.random.normal((2, heads, 70, 64)) for heads in (6, 2, 2))
    mask = mx.random.uniform(shape=(2, 6, 70, 70)) < 0.9
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=mask)
    monkeypatch.setattr(pieces, "MOST_SCORES", 20_000)
    with recorded(model) as parts:
        found = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=mask)
    assert len(parts) == 4 + 4
    assert mx.array_equal(found, expected)


def test_a_matrix_is_divided_by_rows(model: Pass, monkeypatch: Any) -> None:
    x = mx.random.normal((1, 700, 256))
    expected = model(x)
    monkeypatch.setattr(pieces, "_PRODUCTS", 256 * 768 * 100)
    parts, output = recorded_of(model, x)
    rows = [part.output.shape[1] for part in parts if part.output.shape[-1] == 768]
    assert rows == [140] * 5 * 2, "no fewer than 128"
    assert mx.array_equal(output, expected)


def test_what_follows_a_matrix_is_divided_by_rows(monkeypatch: Any) -> None:
    class Gelu(Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = GELU()

    model, x = Gelu(), mx.random.normal((1, 2500, 251))
    monkeypatch.setattr(pieces, "_PRODUCTS", 251 * 625 * 1024)
    with recorded(model) as parts:
        output = model.activation(x)
    assert [part.output.shape[1] for part in parts] == [625] * 4
    assert mx.array_equal(output, GELU()(x))


class VisionMLP(Module):
    """By the name of the class, one that computes each row by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = Linear(width, 3 * width), Linear(width, 3 * width), Linear(3 * width, width)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(silu(self.gate(x)) * self.up(x))


class OfMLPs(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [{"mlp": VisionMLP(64)} for _ in range(2)]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer["mlp"](x)
        return x


def test_what_lies_between_matrices_is_divided_with_them(monkeypatch: Any) -> None:
    """An activation that is no module, and a product, for which the parts are not joined."""
    model, x = OfMLPs(), mx.random.normal((1, 2500, 64))
    expected, modules = model(x), dict(model.named_modules())
    monkeypatch.setattr(pieces, "_PRODUCTS", 625 * 192 * 1024)
    with recorded(model) as parts:
        output = model(x)
    widths = [part.output.shape[2] for part in parts]
    assert widths == [192, 192, 64, 64] * 4 * 2
    assert {part.output.shape[1] for part in parts} == {625}
    assert mx.array_equal(output, expected)
    assert dict(model.named_modules()) == modules


def test_patches_are_divided_into_groups(monkeypatch: Any) -> None:
    class Patches(Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = Conv3d(3, 32, kernel_size=(2, 4, 4), stride=(2, 4, 4))

    model, x = Patches(), mx.random.normal((1000, 2, 4, 4, 3))
    expected = model.proj(x)
    monkeypatch.setattr(pieces, "_PRODUCTS", 250 * 96 * 32)
    with recorded(model) as parts:
        output = model.proj(x)
        model.proj(mx.zeros((2, 4, 8, 8, 3)))
    assert [len(part.output) for part in parts] == [250] * 4 + [2], "others than patches are not divided"
    assert mx.array_equal(output, expected)


def test_queries_and_keys_are_rotated_in_parts_of_their_own(model: Pass) -> None:
    q, k = (mx.cos(mx.random.normal((1, 4, 30, 64))) for _ in range(2))
    with recorded(model) as parts:
        mx.fast.scaled_dot_product_attention(q, k, k, scale=0.25, mask=mx.zeros((30, 30)))
    assert [part.kind[0] for part in parts] == ["queries", "keys", "values", "mask", "attention"]  # type: ignore[index]
    assert parts[0].output is q


def test_each_kind_is_measured_once_and_known_ones_share_a_piece(model: Pass) -> None:
    parts, output = recorded_of(model, mx.random.normal((1, 30, 256)))
    kinds = {part.kind for part in parts}
    assert len(parts) == 12
    assert len(kinds) == 6
    assert len(list(in_pieces(parts, 60.0))) == 7, "those of the first layer, then the second layer"
    parts, again = recorded_of(model, mx.random.normal((1, 30, 256)))
    assert len(list(in_pieces(parts, 0.0))) == 12
    parts, again = recorded_of(model, mx.random.normal((1, 30, 256)))
    assert len(list(in_pieces(parts, 60.0, 30 * 256 * 4 * 4))) == 9, (
        "the second layer's norm and matrix, what attention is given, then attention"
    )
    assert output.shape == again.shape


def test_the_scores_of_attention_count_as_memory(model: Pass, monkeypatch: Any) -> None:
    q = mx.random.normal((1, 6, 200, 64))
    scores_bytes, output_bytes = 2 * 200 * 200 * 4, 200 * 64 * 4
    monkeypatch.setattr(pieces, "MOST_SCORES", 200 * 200)
    for memory, count in (
        (2 * (scores_bytes + output_bytes), 4),
        (6 * output_bytes, 6),
        (5 * (scores_bytes + output_bytes), 2),
    ):
        with recorded(model) as parts:
            mx.fast.scaled_dot_product_attention(q, q, q, scale=0.25)
        del parts[:3]  # queries, keys and values
        assert len(list(in_pieces(parts, 60.0, memory))) == count, "the first one alone, as its time is not known"


def test_the_model_is_as_before(model: Pass) -> None:
    modules, attention = dict(model.named_modules()), mx.fast.scaled_dot_product_attention
    with pytest.raises(ValueError, match="rms_norm"), recorded(model):
        model(mx.ones((1, 3, 255)))
    assert dict(model.named_modules()) == modules
    assert mx.fast.scaled_dot_product_attention is attention
