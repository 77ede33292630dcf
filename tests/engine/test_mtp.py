"""The layer for multi-token prediction: its arithmetic is that of the papers, for each family and format of checkpoints."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from transformers import AutoTokenizer

from node import builtin
from node.cluster.model_specs import ModelSpecs, spec_of_mtp
from node.core.errors import ModelBroken, ModelUnsupported
from node.core.frames import Open
from node.core.generation import Sampling
from node.core.models import ModelSpec, ModelVersion
from node.engine import architectures, plan
from node.engine.draft import DraftFailed
from node.engine.load import load_stage
from node.engine.mtp import FAMILIES, find_mtp
from node.engine.mtp_guesser import MtpGuesser
from node.engine.plan import make_plan
from node.engine.sampling import Draw, History
from node.engine.tensor_codec import pack
from node.model.config import read_config
from node.model.layouts import Layout
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Ring, at_a_stretch, load, prompt, same
from tests.engine.mtp_models import NAMES, layers_of, mtp_model

BUILTIN = Path(builtin.__file__).parent / "pippin-demo"
GREEDY = Draw(Sampling(temperature=0), 0, History(), lambda _: False)
ALL = sorted(FAMILIES)


def test_every_family_is_tested() -> None:
    assert set(NAMES) == set(FAMILIES) <= set(CONFIGURATIONS)


@pytest.mark.parametrize("raw", [True, False], ids=["published", "converted"])
@pytest.mark.parametrize("name", ALL)
def test_it_computes_what_the_papers_say(name: str, raw: bool) -> None:
    directory, reference = mtp_model(name, raw=raw)
    first, end = layers_of(name)
    ring, layer = Ring([load(directory, 0, first)]), load(directory, first, end)
    driver, tokens = ring.stages[0], prompt(12)
    result = driver.run(0, tokens)
    before = driver.hidden(result) if reference.takes_normed else result[0]
    guesser = MtpGuesser(layer, driver)
    expected = reference.hidden(guesser._shared[0](tokens[:, 1:]), before[:, :-1])
    guesser.observe(tokens[0].tolist(), 12, pack(result))
    guesser._make_entries(tokens[0].tolist())
    assert mx.allclose(layer.hidden(guesser._output), expected[:, -1:], atol=2e-4, rtol=2e-4)
    token = guesser.guess(tokens[0].tolist(), 12, GREEDY)
    logits = guesser._shared[1](expected)[0, -1]
    assert logits[token] >= mx.max(logits) - 1e-3


class Session:
    """A session's tokens, and the last stage's result for each of them."""

    def __init__(self, directory: Path, first: int, end: int, tokens: list[int]) -> None:
        """`first`, `end`: its layer for guesses."""
        self.driver, self.layer = load(directory, 0, first), load(directory, first, end)
        self.tokens = tokens

    def result(self, begin: int, end: int) -> tuple[mx.array, ...]:
        self.driver.lanes.apply(Open(0))
        return self.driver.part(self.driver.run(0, mx.array([self.tokens[:end]])), 0, begin, end)

    def guesser(self, *chunks: int) -> MtpGuesser:
        """One that has seen the results of chunks that end there."""
        made = MtpGuesser(self.layer.sibling(), self.driver)
        self.show(made, 0, *chunks)
        return made

    def show(self, guesser: MtpGuesser, begin: int, *ends: int) -> None:
        for end in ends:
            guesser.observe(self.tokens[: end + 1], end, pack(self.result(begin, end)))
            begin = end

    def guess(self, guesser: MtpGuesser, verified: int, *guessed: int) -> int | None:
        return guesser.guess([*self.tokens[:verified], *guessed], verified, GREEDY)


def session(name: str, seed: int = 5, length: int = 60) -> Session:
    rng = random.Random(seed)
    return Session(mtp_model(name, raw=False)[0], *layers_of(name), [rng.randrange(90) for _ in range(length)])


def test_the_built_in_models_is_mostly_right_about_its_answers() -> None:
    """It was trained on chats of this kind."""
    tokenizer, right = AutoTokenizer.from_pretrained(BUILTIN), list[bool]()
    for content in ("Tell me a story about a cat.", "Count from 1 to 20.", "What is Pippin?"):
        turns = [{"role": "user", "content": content}]
        asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        one = Session(BUILTIN, 8, 9, list(asked))
        one.driver.lanes.apply(Open(0))
        hidden = one.driver.run(0, mx.array([asked]))
        for _ in range(60):
            token = int(mx.argmax(one.driver.finish(hidden)[0]).item())
            if token == tokenizer.eos_token_id:
                break
            one.tokens.append(token)
            hidden = one.driver.run(0, mx.array([[token]]))
        begin = len(asked)
        guesser = one.guesser(begin - 1)
        for end in range(begin, len(one.tokens) - 1):
            one.show(guesser, end - 1, end)
            right.append(one.guess(guesser, end + 1) == one.tokens[end + 1])
    assert len(right) > 100
    assert sum(right) / len(right) > 0.6


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "qwen3_next", "mimo", "nemotron_h", "step3p5"])
def test_chunks_and_guesses_change_nothing(name: str) -> None:
    one = session(name)
    whole = one.guess(one.guesser(39), 40)
    assert one.guess(one.guesser(7, 8, 9, 30, 39), 40) == whole
    chained = one.guess(one.guesser(39), 40, 5)
    guesser = one.guesser(20, 39)
    assert one.guess(guesser, 40, 5) == chained
    assert one.guess(guesser, 40, 6, 7) == one.guess(one.guesser(39), 40, 6, 7)
    assert one.guess(guesser, 40) == whole
    for end in range(40, 50):  # each token's result, and a guess at times
        one.show(guesser, end - 1, end)
        if end % 3:
            assert one.guess(guesser, end + 1) == one.guess(one.guesser(end), end + 1)
            one.guess(guesser, end + 1, 3)


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_a_chain_of_guesses_computes_each_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(name)
    guesser, fresh = one.guesser(39), [one.guess(one.guesser(39), 40, *range(3, 3 + length)) for length in range(4)]
    computed, run = list[int](), guesser._run

    def counted(tokens: Sequence[int], hidden: mx.array, unverified: int = 0) -> tuple[mx.array, ...]:
        computed.extend(tokens if unverified else ())
        return run(tokens, hidden, unverified)

    monkeypatch.setattr(guesser, "_run", counted)
    assert [one.guess(guesser, 40, *range(3, 3 + length)) for length in range(4)] == fresh
    assert computed == [3, 4, 5]
    one.show(guesser, 39, 40)
    assert one.guess(guesser, 41) == one.guess(one.guesser(40), 41), "they are taken back"


def test_results_of_later_tokens_may_have_come() -> None:
    one = session("llama")
    guesser = one.guesser(39, 40)
    assert one.guess(guesser, 40) == one.guess(one.guesser(39), 40)
    assert one.guess(guesser, 41) == one.guess(one.guesser(40), 41)


def test_without_the_last_tokens_result_there_is_no_guess() -> None:
    one = session("llama")
    guesser = MtpGuesser(one.layer.sibling(), one.driver)
    assert one.guess(guesser, 40) is None
    one.show(guesser, 0, 38)
    assert one.guess(guesser, 40) is None
    assert one.guess(guesser, 39) is not None
    one.show(guesser, 38, 39)
    assert one.guess(guesser, 40) is not None


def test_another_session_keeps_what_both_begin_with() -> None:
    one, other = session("llama"), session("llama", seed=6)
    other.tokens[:30] = one.tokens[:30]
    guesser = one.guesser(39)
    one.guess(guesser, 40)
    other.show(guesser, 30, 48)  # the ring had the KV of the first 30 tokens
    # The result of token 29 is gone, as it was used with the first session's token 30.
    assert guesser._entries == [*range(29), *range(30, 48)]
    one.guess(guesser, 41)
    assert guesser._entries == [*range(29)]
    guesser.clear()
    assert (guesser.kv_bytes, guesser._stage.lanes.kv_bytes) == (0, 0)


def test_an_error_is_told_at_the_next_guess() -> None:
    one = session("llama")
    guesser = one.guesser(39)
    guesser.observe(one.tokens, 40, pack([mx.zeros((1, 2, 3))]))
    with pytest.raises(DraftFailed, match="The MTP layer failed"):
        one.guess(guesser, 41)
    assert guesser.kv_bytes == 0


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_a_folder_may_hold_nothing_but_the_layer(tmp_path: Path, name: str) -> None:
    directory, _ = mtp_model(name, raw=False)
    alone = tmp_path / "alone"
    alone.mkdir()
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["num_experts"] = 4 if name.endswith("moe") else 0
    (alone / "config.json").write_text(json.dumps(config | {"model_type": "qwen3_5_mtp"}))
    held = dict(mx.load(str(directory / "model-mtp.safetensors")))
    mx.save_safetensors(
        str(alone / "model.safetensors"), {key.removeprefix("mtp."): value for key, value in held.items()}
    )
    mtp = find_mtp(read_config(alone), Layout(alone).weights.tensors)
    assert mtp is not None
    assert mtp.is_alone
    assert (mtp.layers, mtp.config["model_type"]) == (4, name)
    one, other = (tree_flatten(load(each, 4, 5).model.parameters()) for each in (directory, alone))
    assert [key for key, _ in one] == [key for key, _ in other]
    assert all(same(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, ["*", "E"]),
        ({"mtp_hybrid_override_pattern": "*E"}, ["*", "E"]),
        ({"mtp_layers_block_type": ["full_attention", "moe"]}, ["*", "E"]),
        ({"mtp_layers_block_type": ["mamba", "moe"]}, None),  # what would take it back?
        ({"mtp_layers_block_type": [["moe"]]}, None),
        ({"mtp_layers_block_type": 3}, None),
        ({"hybrid_override_pattern": 3}, None),
    ],
)
def test_the_config_says_of_which_layers_nemotrons_is(told: dict[str, Any], found: list[str] | None) -> None:
    directory, _ = mtp_model("nemotron_h", raw=False)
    config = json.loads((directory / "config.json").read_text())
    del config["mtp_layers_block_type"]
    mtp = find_mtp(config | told, Layout(directory).weights.tensors)
    assert (mtp and (mtp.layers, mtp.config["hybrid_override_pattern"])) == (found and (6, found))


async def test_of_an_unproven_architecture_it_is_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Its tensors are the layer's, not unknown ones."""
    directory, _ = mtp_model("llama", raw=False)
    monkeypatch.setattr(architectures, "PROVEN", {})
    plan._make_plan.cache_clear()  # of tests that knew the architecture
    weights = Layout(directory).weights
    with pytest.raises(ModelUnsupported, match="type llama are unproven"):
        await described(directory, unproven=False)
    assert not caplog.text, "nothing is told of the layer of a model that is refused"
    spec = await described(directory, unproven=True)
    assert spec.mtp
    assert spec.mtp.layers == 1
    first, end = layers_of("llama")
    for layers in ((0, first), (first, end)):
        stage = at_a_stretch(load_stage(directory, *layers, weights.tensors, unproven=True))
        assert stage.end - stage.start == layers[1] - layers[0]


async def described(directory: Path, *, unproven: bool) -> ModelSpec:
    """By a node that was started with --unproven, or without."""

    async def run(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return work(*args, **more)

    async def check(*_: Any) -> None:
        """It runs."""

    none: Any = None
    compute, trials = SimpleNamespace(unproven=unproven, run=run), SimpleNamespace(check=check)
    specs = ModelSpecs(none, none, cast("Any", compute), none, none, none, 0, none, none, cast("Any", trials))
    return await specs._describe(ModelVersion("m", "r"), read_config(directory), Layout(directory).weights)


def test_its_layers_count_in_the_footprint() -> None:
    directory, _ = mtp_model("nemotron_h", raw=True)
    config, weights = read_config(directory), Layout(directory).weights
    mtp = find_mtp(config, weights.tensors)
    assert mtp
    spec = spec_of_mtp(ModelVersion("m", "r"), mtp, make_plan(mtp.config), weights)
    named = {name: tensor.nbytes for name, tensor in weights.tensors.items() if name.startswith("mtp.")}
    ends = sum(
        size for name, size in named.items() if name.split(".")[3] in ("enorm", "hnorm", "eh_proj", "final_layernorm")
    )
    each = tuple(sum(size for name, size in named.items() if f"layers.{k}." in name) for k in range(2))
    assert sum(spec.layer_bytes) + spec.ends_bytes == sum(each)
    assert (spec.ends_bytes, spec.layers) == (ends, 2)
    assert [cost.per_token > 0 for cost in spec.kv] == [True, False]


@pytest.mark.parametrize("name", ["llama", "glm4_moe", "nemotron_h", "qwen3_5_moe"])
def test_it_is_quantised_as_the_model_is(name: str) -> None:
    directory, _ = mtp_model(name, raw=False, bits=8)
    kinds = {path: type(module).__name__ for path, module in load(directory, *layers_of(name)).model.named_modules()}
    found = {path.rpartition(".")[2]: kind for path, kind in kinds.items() if path.endswith(("projection", "q_proj"))}
    assert found == {"projection": "QuantizedLinear", "q_proj": "QuantizedLinear"}


@pytest.mark.parametrize(("lack", "said"), [("fc", "lacks"), ("layers.0.mlp.up_proj", "lacks"), (None, "shape")])
def test_a_damaged_layer_is_refused_and_the_model_is_not(tmp_path: Path, lack: str | None, said: str) -> None:
    directory, _ = mtp_model("llama", raw=False)
    shutil.copytree(directory, tmp_path / "model")
    held = dict(mx.load(str(directory / "model-mtp.safetensors")))
    mx.eval(held)
    if lack == "fc":
        held["mtp.fc.more"] = held["mtp.norm.weight"]
    elif lack:
        del held[f"mtp.{lack}.weight"]
    else:
        held["mtp.norm.weight"] = mx.ones((3,))
    mx.save_safetensors(str(tmp_path / "model" / "model-mtp.safetensors"), held)
    with pytest.raises(ModelBroken, match=said if lack != "fc" else "does not take"):
        load(tmp_path / "model", 4, 5)
    load(tmp_path / "model", 0, 4)


def test_a_failure_of_the_device_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come from earlier work, so that no KV is to be trusted. Any other error only ends the guesses."""
    one = session("llama")
    guesser = one.guesser(20)

    def failing(said: str) -> Callable[..., None]:
        def observe(*_: object) -> None:
            raise RuntimeError(said)

        return observe

    monkeypatch.setattr(guesser, "_observe", failing("odd shapes"))
    one.show(guesser, 20, 30)
    with pytest.raises(DraftFailed, match="odd shapes"):
        one.guess(guesser, 31)
    monkeypatch.setattr(guesser, "_observe", failing("[METAL] Command buffer execution failed: Caused GPU Hang Error."))
    with pytest.raises(RuntimeError, match="GPU Hang"):
        one.show(guesser, 20, 30)
