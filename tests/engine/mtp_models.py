"""Tiny models with an MTP layer, in the format of the checkpoints of their families, and what the layer should compute."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.base import create_attention_mask

from node.engine.plan import build
from tests.engine.checkpoints import FORMATS, to_checkpoint, without
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import SHARED, shaken, write_model

PAST = {"begin": "model.layers.4.", "layer": "", "e": "enorm", "h": "hnorm", "p": "eh_proj", "n": "shared_head.norm"}
MTP = {
    "begin": "mtp.", "layer": "layers.0.", "e": "pre_fc_norm_embedding", "h": "pre_fc_norm_hidden", "p": "fc", "n": "norm",
}  # fmt: skip
MIMO = {
    "begin": "model.mtp_layers.0.", "layer": "", "e": "token_layernorm", "h": "hidden_layernorm", "p": "input_proj",
    "n": "final_layernorm",
}  # fmt: skip
NEMOTRON = {
    "begin": "mtp.", "layer": "layers.", "e": "layers.0.enorm", "h": "layers.0.hnorm", "p": "layers.0.eh_proj",
    "n": "layers.1.final_layernorm",
}  # fmt: skip
STEP = PAST | {"n": "transformer.shared_head.norm"}
NAMES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"), PAST),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_next", "llama"), MTP),
    "mimo": MIMO,
    "nemotron_h": NEMOTRON,
    "step3p5": STEP,
}
"""How the checkpoints of each family name the layer's tensors."""
ONE: dict[str, Any] = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "full_attention_interval": 1}
"""Makes the only layer of a model one of the kind of the MTP layer: attention to all, and experts if the model has any."""
SHIFTED = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "step3p5")
MORE: dict[str, dict[str, Any]] = {
    "step3p5": {
        "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_theta": [10000.0, 10000.0, 500.0, 10000.0, 500.0],
        "partial_rotary_factors": [0.5, 0.5, 1.0, 0.5, 1.0],
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
        "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 0.5],
    },
    "nemotron_h": {"layer_norm_epsilon": 0.02, "mtp_layers_block_type": ["attention", "moe"]},
}
"""What configs say of each layer, the MTP layer behind the model's own."""
OWN: dict[str, dict[str, Any]] = {
    "step3p5": {key: value[-1:] for key, value in MORE["step3p5"].items() if isinstance(value, list)}
    | {"moe_layers_enum": ""},
    "nemotron_h": {"hybrid_override_pattern": ["*", "E"], "num_hidden_layers": 2},
}
"""The same of a model with that layer alone. Step's has no experts."""
LAYERS = {"nemotron_h": (6, 8)}
"""The number of the model's layers, and that with those of MTP."""


def layers_of(name: str) -> tuple[int, int]:
    return LAYERS.get(name, (4, 5))


class Reference:
    """The formulas of the DeepSeek-V3 report (2.2) and of Qwen's and MiMo's, with mlx-lm's decoder layers, without caches."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        text = config.get("text_config")
        one = config | ({"text_config": text | ONE} if text else ONE) | OWN.get(name, {})
        part = one.get("text_config", one)
        mx.random.seed(11)
        model = build(one)
        model.update(tree_map(lambda weight: shaken(weight, mx.float32), model.parameters()))
        self.model = model
        width = part["hidden_size"]
        self._eps = part["layer_norm_epsilon" if name == "nemotron_h" else "rms_norm_eps"]
        self._hidden_first = name == "mimo"
        self.takes_normed = name not in ("mimo", "step3p5")
        self._window = one["sliding_window"] if name == "step3p5" else None
        self.own = {
            "e": 1 + 0.1 * mx.random.normal((width,)),
            "h": 1 + 0.1 * mx.random.normal((width,)),
            "p": mx.random.normal((width, 2 * width)) / width**0.5,
            "n": 1 + 0.1 * mx.random.normal((width,)),
        }

    def _norm(self, x: mx.array, which: str) -> mx.array:
        return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + self._eps) * self.own[which]

    def output(self, embedded: mx.array, hidden: mx.array) -> mx.array:
        """Of the layers, before the last norm [1, length, width]."""
        both = [self._norm(embedded, "e"), self._norm(hidden, "h")]
        x = mx.concatenate(both[::-1] if self._hidden_first else both, axis=-1) @ self.own["p"].T
        mask = create_attention_mask(x, None, self._window, return_array=True)
        for layer in self.model.layers:
            y = layer(x, mask, None)
            x = y[0] if isinstance(y, tuple) else y
        return x

    def hidden(self, embedded: mx.array, hidden: mx.array) -> mx.array:
        """The input of the LM head."""
        return self._norm(self.output(embedded, hidden), "n")


def mtp_model(name: str, *, raw: bool, bits: int = 0) -> tuple[Path, Reference]:
    """A model with an MTP layer; `raw`: as its authors publish it, else as mlx-lm converts it."""
    directory = SHARED / f"mtp-{name.replace('/', '-')}-{raw}-{bits}"
    config = CONFIGURATIONS[name] | MORE.get(name, {})
    reference = Reference(name, config)
    if not directory.exists():
        write_model(directory, config, bits=bits)
        if raw and name in FORMATS:
            to_checkpoint(directory, name)
        held = dict(mx.load(str(directory / "model.safetensors")))
        held = {
            tensor: value
            for tensor, value in held.items()
            if "mtp" not in tensor and not tensor.startswith("model.layers.4.")
        }
        mx.save_safetensors(str(directory / "model.safetensors"), held)
        mx.save_safetensors(str(directory / "model-mtp.safetensors"), tensors_of(name, reference, raw=raw, bits=bits))
    return directory, reference


def tensors_of(name: str, reference: Reference, *, raw: bool, bits: int = 0) -> dict[str, mx.array]:
    """The layer's tensors, under the names of the family's checkpoints."""
    names = NAMES[name]
    plain = dict(tree_flatten(reference.model.parameters()))
    plain = without(r"embed_tokens|embeddings|lm_head|^(language_model\.)?model\.norm|norm_f")(plain)
    if raw:
        for rule in FORMATS.get(name, ()):
            if name != "llama":
                plain = rule(plain)
    out = {}
    for tensor, value in plain.items():
        _, found, rest = tensor.partition("layers." if name in LAYERS else "layers.0.")
        if found and "mtp" not in tensor:
            out[f"{names['begin']}{names['layer']}{rest}"] = value
    own = {f"{names['begin']}{names[key]}.weight": value for key, value in reference.own.items()}
    out |= own
    if raw and name in SHIFTED:
        out = {tensor: value - 1 if value.ndim == 1 and "norm" in tensor else value for tensor, value in out.items()}
    if bits:
        out = quantised(out, bits)
    if names in (PAST, STEP):  # copies of the model's own, as checkpoints have them
        head = "shared_head.head" if names is PAST else "transformer.shared_head.output"
        out |= {f"{names['begin']}{each}.weight": mx.zeros((2, 2)) for each in ("embed_tokens", head)}
    mx.eval(out)
    return out


def quantised(tensors: dict[str, mx.array], bits: int) -> dict[str, mx.array]:
    out: dict[str, mx.array] = {}
    for tensor, value in tensors.items():
        if value.ndim == 2 and value.shape[-1] % 32 == 0 and not tensor.endswith("gate.weight"):
            packed = mx.quantize(value, group_size=32, bits=bits)
            path = tensor.removesuffix("weight")
            out |= {path + part: each for part, each in zip(("weight", "scales", "biases"), packed, strict=True)}
        else:
            out[tensor] = value
    return out
