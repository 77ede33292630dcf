"""What `cluster models --prove` says of architectures that may be cut, and of those that the dry run takes for such."""

import json
import re
import sys
from types import ModuleType

import pytest
from mlx_lm.models import llama

from node.cli import models
from node.core.errors import ModelUnsupported
from node.engine import architectures, proof
from node.engine.architectures import check_supported
from node.engine.plan import make_plan
from tests.engine.configurations import CONFIGURATIONS, REFUSED
from tests.engine.test_trials import CRASHES

REAL = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 4096, "rope_theta": 5e5,
    "max_position_embeddings": 131072, "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip


class Tail(llama.Model):
    """What it reads of the tokens before the layers changes the logits after them: the dry run can't tell for whom it is."""

    def __call__(self, inputs, cache=None):
        shift = sum(inputs.tolist()[0])
        return super().__call__(inputs, cache) * (1 + shift)


class Noting(llama.TransformerBlock):
    """Where all models of the process find it, the first layer notes a number that the later ones read."""

    noted = 0.0
    is_first = False

    def __call__(self, x, mask=None, cache=None):
        out = super().__call__(x, mask, cache)
        if self.is_first:
            Noting.noted = out[0, -1, 0].item()
            return out
        return out * (1 + Noting.noted)


class Notes(llama.Model):
    def __init__(self, args):
        super().__init__(args)
        self.model.layers = [Noting(args) for _ in self.model.layers]
        self.model.layers[0].is_first = True


class Last(llama.TransformerBlock):
    def __call__(self, x, mask=None, cache=None):
        out = super().__call__(x, mask, cache)
        Noting.noted = out[0, -1, 0].item()
        return out


class Ends(llama.Model):
    """The logits depend on a number that the last layer notes."""

    def __init__(self, args):
        super().__init__(args)
        self.model.layers[-1] = Last(args)

    def __call__(self, inputs, cache=None):
        return super().__call__(inputs, cache) * (1 + Noting.noted)


class Far(Noting):
    """What it notes matters in long contexts only, and no number of the config says from where on."""

    def __call__(self, x, mask=None, cache=None):
        if cache is None or cache.offset + x.shape[1] < 306:
            return llama.TransformerBlock.__call__(self, x, mask, cache)
        return super().__call__(x, mask, cache)


class Chooses(llama.Model):
    def __init__(self, args):
        super().__init__(args)
        self.model.layers = [Far(args) for _ in self.model.layers]
        self.model.layers[0].is_first = True


@pytest.fixture(params=[Tail, Notes, Ends, Chooses])
def unknown(request, monkeypatch):
    module = ModuleType("mlx_lm.models.unknown")
    module.Model, module.ModelArgs = request.param, llama.ModelArgs
    monkeypatch.setitem(sys.modules, module.__name__, module)
    known = architectures.fingerprint
    monkeypatch.setattr(architectures, "fingerprint", lambda name: "f" if name == "unknown" else known(name))
    return CONFIGURATIONS["llama"] | {"model_type": "unknown"}


def folder(path, config):
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


FOURTEEN_HEADS = CONFIGURATIONS["llama"] | {
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": None,
    "vocab_size": 9000,
}
"""As Qwen2.5 0.5B has them: the smallest miniatures have heads of one number, which can't be rotated."""


@pytest.mark.parametrize(
    "config",
    [REAL, FOURTEEN_HEADS, *(CONFIGURATIONS[name] for name in ("gemma3n", "deepseek_v32", "mamba2", "kimi_k3"))],
)
def test_an_architecture_that_may_be_cut(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["proof", folder(tmp_path, config)])
    assert proof.main() == 0
    assert capsys.readouterr().out.endswith(": cut anywhere: same bits\n")


def test_one_that_gives_something_else(unknown, tmp_path, monkeypatch, capsys):
    with pytest.raises(ModelUnsupported, match="type unknown are not supported.*--prove"):
        make_plan(unknown)
    assert make_plan(unknown, unproven=True).cuts == (1, 2, 3), "the dry run sees nothing"
    monkeypatch.setattr(sys, "argv", ["proof", folder(tmp_path, unknown)])
    assert proof.main() == 1
    verdict, first, *_ = capsys.readouterr().out.splitlines()
    assert verdict.endswith(": 6 cuts differ")
    assert re.fullmatch("cut before layer 1: step [01] differs", first), "or in the long chunk"


def test_what_is_known_to_be_wrong_and_what_there_is_not(tmp_path, monkeypatch, capsys):
    for config in (REFUSED["nanbeige"], {"model_type": "../utils"}, {"model_type": "no_such"}):
        with pytest.raises(ModelUnsupported):
            check_supported(config, unproven=True)
    monkeypatch.setattr(sys, "argv", ["proof", folder(tmp_path, REFUSED["nanbeige"])])
    assert proof.main() == 1
    assert "it runs its layers several times" in capsys.readouterr().err


def test_a_model_that_ends_its_process(tmp_path, capfd):
    assert models.prove(folder(tmp_path, CRASHES)) == 1
    told = capfd.readouterr().err
    assert re.search("the process that ran it was ended by SIG(SEGV|ABRT)", told), "the heap may notice first"
