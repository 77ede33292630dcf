"""The dry run's findings about models of unknown architectures."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models.cache import ArraysCache, KVCache

from node.core.errors import ModelUnsupported
from node.engine.dry_run import PROMPT, DryRun, with_short_choices

WIDTH, LAYERS = 8, 4


def run_of(model, caches=KVCache):
    return DryRun(model, [caches() for _ in range(len(model.layers))], mx.float32)


class Plain(nn.Module):
    """Each layer gets the one before it; `told` is what else the model hands around."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        h, told = self.embed(tokens), self.before(tokens)
        for number, layer in enumerate(self.layers):
            h, told = self.between(number, layer, h, told)
        return self.embed.as_linear(h)

    def before(self, tokens):
        return None

    def between(self, number, layer, h, told):
        return layer(h), told


class Sharing(Plain):
    """Its third layer, if there are many tokens, looks only at the best ones that the first layer found."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def between(self, number, layer, h, told):
        h = layer(h if number != 2 or told is None else h + told)
        if number == 0 and h.shape[1] > self.most:
            told = mx.sort(h, axis=1)[:, : self.most].sum(axis=1, keepdims=True)
        return h, told


@pytest.mark.parametrize("most", [4, 64, 400, 2048])
def test_what_layers_share_only_in_a_long_prompt(most):
    assert run_of(Sharing(most)).cuts()[0] == (1, 3)


def test_what_they_share_where_no_long_prompt_is_run():
    """The code of recurrent layers goes through the tokens one by one."""
    assert run_of(Sharing(2048), lambda: ArraysCache(1)).cuts()[0] == (1, 2, 3)
    short = with_short_choices({"text_config": {"index_topk": 2048, "num_experts_per_tok": 8, "moe_topk": 8}})
    assert short == {"text_config": {"index_topk": 4, "num_experts_per_tok": 8, "moe_topk": 8}}
    assert run_of(Sharing(short["text_config"]["index_topk"]), lambda: ArraysCache(1)).cuts()[0] == (1, 3)


class Grams(Plain):
    """Pairs of tokens, looked up on the host, are added at the third layer."""

    def before(self, tokens):
        return sum(tokens.tolist()[0])

    def between(self, number, layer, h, told):
        return layer(h + told if number == 2 else h), told


class Numpy(Grams):
    def before(self, tokens):
        return float(np.array(tokens).sum())


class Deep(Plain):
    """The layers get the tokens, and read them."""

    def before(self, tokens):
        return tokens

    def between(self, number, layer, h, told):
        return layer(h + told.tolist()[0][0] if number == 2 else h), told


@pytest.mark.parametrize("kind", [Grams, Numpy, Deep])
def test_tokens_that_are_read_on_the_host(kind):
    run = run_of(kind())
    assert run.reads_tokens
    assert run.cuts()[0] == (1, 2, 3)
    assert not run_of(Plain()).reads_tokens


class Bundle:
    def __init__(self, first: mx.array) -> None:
        self.raw, self.eps, self.seen = first, 1e-5, 0


class Object(nn.Module):
    """A layer that changes and passes on an object of arrays, as that of Kimi K3 does; it may count what it has seen."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.linear, self.counts = nn.Linear(WIDTH, WIDTH), counts

    def __call__(self, h, bundle):
        bundle.raw = bundle.raw + h
        bundle.seen += h.shape[1] if self.counts else 0
        return self.linear(h), bundle


class Objects(Plain):
    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.layers = [Object(counts) for _ in range(LAYERS)]

    def before(self, tokens):
        return Bundle(self.embed(tokens))

    def between(self, number, layer, h, told):
        return layer(h, told)


def test_objects_that_layers_pass_on():
    cuts, carried = run_of(Objects(counts=False)).cuts()
    assert (cuts, carried[2]) == ((1, 2, 3), (0, 1))
    with pytest.raises(ModelUnsupported, match="change from step to step"):
        run_of(Objects(counts=True))


class Gate(Plain):
    """A number of the first layer's output, read on the host, decides what the third layer gets."""

    def between(self, number, layer, h, told):
        h = layer(h * told if number == 2 else h)
        return h, (float(h.max()) if number == 0 else told)


class Tail(Plain):
    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        logits = super().__call__(tokens)
        return logits * tokens.tolist()[0][0]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def __call__(self, h):
        return self.linear(h) * float(h.max())


class Experts(Plain):
    """Each layer but the first reads its own input on the host, as some route tokens to experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH), *(Own() for _ in range(LAYERS - 1))]
        self.longest = 0

    def before(self, tokens):
        self.longest = max(self.longest, tokens.shape[1])


def test_outputs_that_are_read_on_the_host():
    with pytest.raises(ModelUnsupported, match="depends on more than its last layer's"):
        run_of(Gate()).cuts()
    with pytest.raises(ModelUnsupported, match="depends on more than its last layer's"):
        run_of(Tail()).cuts()
    own = run_of(model := Experts())
    assert own.cuts()[0] == (1, 2, 3)
    assert not own.reads_tokens
    assert model.longest == PROMPT, "what is read is computed, which takes minutes for a long prompt"
