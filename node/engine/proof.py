"""Whether cutting a model's architecture is right: a small model of its kind, whole and cut, gives the same bits or not.

A program of its own, `python -m node.engine.proof MODEL`, as the model may end its process: `cluster models --prove` runs it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
from huggingface_hub import hf_hub_download
from mlx.nn.layers.base import Module
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

from node.core.errors import ModelNotFound, ModelUnsupported, PippinError
from node.core.frames import Open
from node.core.mlx_errors import MLX_ERRORS
from node.engine.architectures import check_supported
from node.engine.config_bounds import check_config
from node.engine.dry_run import with_short_choices
from node.engine.load import free_others, own_weights
from node.engine.miniature import miniatures
from node.engine.plan import Plan, build, make_plan
from node.engine.stage import Stage
from node.engine.tensor_codec import pack, unpack
from node.model.config import read_config
from node.model.short_names import canonical

_CHUNKS, _GREEDY = (7, 400, 20), 12
"""Tokens of the prompt's chunks, and of the answer. The long one is for what a model does in long contexts only."""
_TOKENS = 100
_DIFFERENT = 1


def main() -> int:
    """Print the verdict. Returns the exit code: 1 if the cut model differs, or can't be tried."""
    try:
        config = read_config(_folder_of(sys.argv[1]))
        differences = prove(config)
    except PippinError as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201
        return _DIFFERENT
    verdict = f"{len(differences)} cuts differ" if differences else "cut anywhere: same bits"
    said = [f"{config['model_type']} with mlx-lm {version('mlx-lm')}: {verdict}", *differences]
    print("\n".join(said))  # noqa: T201
    return _DIFFERENT if differences else 0


def _folder_of(model: str) -> Path:
    """A model's folder, or one with the config.json of a model of the hub."""
    if (folder := Path(model).expanduser()).is_dir():
        return folder
    try:
        return Path(hf_hub_download(canonical(model), "config.json")).parent
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{model} is no folder, and the hub does not give its config.json: {error!s:.300}"
        ) from error


def prove(config: Mapping[str, Any]) -> list[str]:
    """What differs when a small model of this kind, with random weights, is cut at each legal place in two, and at several in
    three; empty if nothing does. Raises ModelUnsupported if it can't be cut, or computed.
    """
    check_supported(config, unproven=True)
    check_config(config)
    failure: BaseException | None = None
    for small in miniatures(config):
        try:
            return _differences(with_short_choices(small))
        except (*MLX_ERRORS, ModelUnsupported) as error:
            failure = error
    if isinstance(failure, ModelUnsupported):
        raise failure
    raise ModelUnsupported(f"No small model of this kind can be computed: {failure!r:.300}") from failure


def _differences(config: Mapping[str, Any]) -> list[str]:
    plan = make_plan(config, unproven=True)
    if not plan.cuts:
        raise ModelUnsupported(f"A {plan.model_type} model cannot be cut.")
    tokens, expected = _answer(_random(config), min(plan.vocabulary, _TOKENS))

    @cache
    def stage(start: int, end: int) -> Stage:
        """With weights of its own, and zeros in place of all others."""
        model = _random(config)
        free_others(model, own_weights(model, plan, start, end))
        return Stage(model, plan, start, end)

    other = _random(config)
    far = make_prompt_cache(other)
    mx.eval(other(mx.zeros((1, max(_CHUNKS)), mx.int32), cache=far))

    def distract() -> None:
        """Compute something else, in case the class keeps values where nodes do not share them, as in a module: at a beginning,
        and far from it.
        """
        mx.eval(other(mx.zeros((1, _GREEDY), mx.int32), cache=make_prompt_cache(other)))
        mx.eval(other(mx.zeros((1, 1), mx.int32), cache=far))

    pairs = list(combinations(plan.cuts, 2))
    found = []
    for inner in (*((cut,) for cut in plan.cuts), *pairs[:: max(1, len(pairs) // 3)]):
        stages = [stage(*bounds).sibling() for bounds in pairwise((0, *inner, plan.layers))]
        for number, (step, logits) in enumerate(zip(tokens, expected, strict=True)):
            if not mx.array_equal(_step(stages, plan, step, distract, is_first=number == 0), logits):
                found.append(f"cut before layer {' and '.join(map(str, inner))}: step {number} differs")
                break
    return found


def _random(config: Mapping[str, Any]) -> Module:
    """The same weights each time. Those that begin as zeros or ones would hide a layer that is left out."""
    mx.random.seed(7)
    model = build(config)

    def shaken(weight: mx.array) -> mx.array:
        is_number = mx.issubdtype(weight.dtype, mx.floating)
        return (weight + 0.1 * mx.random.normal(weight.shape)).astype(mx.float32) if is_number else weight

    model.update(tree_map(shaken, model.parameters()))  # type: ignore[no-untyped-call]
    mx.eval(model.parameters())  # type: ignore[no-untyped-call]
    return model


def _answer(model: Module, vocabulary: int) -> tuple[list[mx.array], list[mx.array]]:
    """The steps of a random prompt and of the whole model's greedy answer, and the logits of each."""
    caches = make_prompt_cache(model)
    tokens = [mx.random.randint(0, vocabulary, (1, length)).astype(mx.int32) for length in _CHUNKS]
    logits: list[mx.array] = []
    for number in range(len(_CHUNKS) + _GREEDY):
        if number >= len(tokens):
            tokens.append(mx.argmax(logits[-1][:, -1:], axis=-1).astype(mx.int32))
        logits.append(model(tokens[number], cache=caches))
        mx.eval(logits[-1], [cache.state for cache in caches])
    last = mx.where(mx.isfinite(logits[-1]), logits[-1], 0)
    if not mx.isfinite(mx.std(last)) or mx.std(last) < 1e-6:
        raise ValueError("the model says nothing that could be compared")
    return tokens, logits


def _step(
    stages: Sequence[Stage], plan: Plan, tokens: mx.array, before: Callable[[], None], *, is_first: bool
) -> mx.array:
    """Logits [1, length, vocabulary] of a ring. `before`: is called before each of its stages, and before the first one finishes."""
    hidden: tuple[mx.array, ...] = ()
    for stage in stages:
        before()
        if is_first:
            stage.lanes.apply(Open(1))
        told = tokens if stage.start == 0 or plan.reads_tokens else None
        hidden = unpack(pack(stage.run(1, told, hidden)))
    before()
    return stages[0].finish(hidden, every=True)


if __name__ == "__main__":
    sys.exit(main())
