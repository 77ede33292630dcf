"""The dry run's findings about models of unknown architectures."""

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.cache import KVCache

from node.engine.dry_run import DryRun


class Sharing(nn.Module):
    """A model whose third layer, if there are many tokens, looks only at the best ones that the first layer found."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = [nn.Linear(8, 8) for _ in range(3)]
        self.most = most

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        h = self.embed(tokens)
        best = None
        for number, layer in enumerate(self.layers):
            if number == 2 and best is not None:
                h = h + best
            h = layer(h)
            if number == 0 and tokens.shape[1] > self.most:
                best = mx.sort(h, axis=1)[:, : self.most].sum(axis=1, keepdims=True)
        return self.embed.as_linear(h)


@pytest.mark.parametrize(("most", "cuts"), [(4, (1,)), (64, (1,)), (512, (1, 2))])
def test_what_layers_share_only_in_a_long_prompt(most, cuts):
    run = DryRun(Sharing(most), [KVCache() for _ in range(3)], mx.float32)
    assert run.cuts()[0] == cuts
