"""Architectures, named as mlx-lm's modules, or as mlx-vlm's packages where mlx-lm has none. Supported are those that give the same
results in stages as in one piece in tests: `tests/engine/configurations.py` has a model of each, and a test checks that the list
contains no others.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import mlx_lm.utils
from mlx_lm.utils import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING

from node.core.errors import ModelUnsupported
from node.engine.mlx_vlm import vlm_folder

PROVEN: Mapping[str, str] = json.loads((Path(__file__).parent / "proven.json").read_text("utf-8"))
"""The fingerprint of each supported module's code with which the tests were passed; they write it."""

_UNPROVEN = "`cluster models --prove MODEL` says whether it may be cut; nodes that are started with --unproven load it all the same."

OF_MLX_VLM = frozenset(
    [
        "cohere2_moe",
        "deepseek_v4",
        "glm5_next",
        "hy_v4",
        "k2_horizon",
        "kolibri1",
        "mimo_v2",
        "minimax_m3",
        "mistral_large3",
        "qwen4_exp",
        "step3p7",
        "xing4_0",
    ]
)
"""Those whose class is mlx-vlm's."""

SUPPORTED = OF_MLX_VLM | frozenset([
    "afmoe", "apertus", "baichuan_m1", "bailing_hybrid", "bailing_moe", "bailing_moe_linear", "bailing_moe_v3",
    "cohere", "cohere2", "dbrx", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5",
    "ernie4_5_moe", "exaone", "exaone4", "exaone_moe", "falcon_h1", "gear", "gemma", "gemma2", "gemma3",
    "gemma3_text", "gemma3n", "gemma4", "gemma4_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa",
    "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid", "helium",
    "hunyuan", "hunyuan_v1_dense", "internlm2", "internlm3", "jamba", "kimi_k25", "kimi_k3", "kimi_linear", "kimi_vl", "Klear",
    "laguna", "lfm2", "lfm2-vl", "lfm2_moe", "lille-130m", "llama", "llama4", "llama4_text", "longcat_flash",
    "longcat_flash_ngram", "mamba", "mamba2", "mellum", "mimo", "mimo_v2_flash", "minicpm", "minicpm3", "minimax",
    "minimax_m3_vl", "ministral3", "mistral3", "mistral4", "mixtral", "muse_glimmer", "nanochat", "nemotron",
    "nemotron-nas", "nemotron_h", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "openelm", "phi", "phi3", "phi3small",
    "phimoe", "phixtral", "pixtral", "plamo", "plamo2", "plamo3", "qwen", "qwen2", "qwen2_moe", "qwen2_vl", "qwen3",
    "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "recurrent_gemma", "rwkv7",
    "seed_oss", "smollm3", "solar_open", "spark2_5", "stablelm", "starcoder2", "step3p5", "talkie", "telechat3",
    "youtu_llm",
])  # fmt: skip

REFUSED: Mapping[str, str] = {
    "afm7": "its code goes through two lists of layers, and only one list can be cut",
    "bitnet": "it computes with a Metal kernel of its own, so no test proves that cutting it is right",
    "deepseek_v41": "its layers read each other's caches and candidates, and its caches are of a class of their own",
    "iquestloopcoder": "it runs its layers twice for each token",
    "muse_spark": "it computes with a Metal kernel of its own, so no test proves that cutting it is right",
    "nanbeige": "it runs its layers several times for each token",
    "olmo": "mlx-lm's code for it needs a package that is not part of Pippin",
    "prism_hadamard_qwen35": "its loader insists on the weights of all layers",
}

UNBATCHABLE: Mapping[str, str] = {
    "gemma2": "with grouped attention its masks do not fit a batch",
    "glm5_next": "its projected keys are as many for each row",
    "gpt_bigcode": "its positions are made for one sequence",
    **dict.fromkeys(
        ("minimax_m3", "minimax_m3_vl"), "the blocks of its sparse attention are counted from the padding on the left"
    ),
    "phi3small": "its block-sparse masks do not fit a batch",
    "qwen4_exp": "mlx-vlm computes prompts of a batch one by one",
}
"""Architectures whose sessions cannot share a batch in mlx-lm, though their caches could."""


UNPADDED: Mapping[str, str] = dict.fromkeys([
    "baichuan_m1", "bailing_moe_linear", "jamba", "longcat_flash_ngram", "mamba", "nemotron_h", "olmo_hybrid",
    "recurrent_gemma", "rwkv7",
], "its recurrent state takes padding for tokens")  # fmt: skip
"""Architectures whose prompts of different lengths are prefilled one by one; padded, mlx-lm's code gives wrong
results."""

CHUNKED: Mapping[str, str] = {
    "deepseek_v4": "the first row that a chunk adds to a pool knows nothing of the tokens before",
    "phi3small": "the blocks of its sparse attention are counted from the end of each chunk",
    "plamo3": "its window is one token wider inside of a chunk than in the cache",
}
"""Architectures whose answer depends on the chunks of the prompt in mlx-lm's code: they always get the same chunks."""

UNPROVEN_ON_METAL: Mapping[str, str] = {
    **dict.fromkeys(
        ("bailing_moe_v3", "kimi_linear", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next"), "gated delta rule"
    ),
    **dict.fromkeys(("falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "plamo2"), "state space model"),
    "kimi_k3": "gated delta rule, and the mix of earlier residuals",
    "rwkv7": "WKV",
    **dict.fromkeys(OF_MLX_VLM, "short steps of quantized weights, among others"),
}
"""Architectures with Metal kernels of mlx-lm's or mlx-vlm's own, and what these compute. Tested is only what these compute
elsewhere: the same with plain operations."""

UNFUSED: Mapping[str, str] = {
    "gear": "it caps its scores",
    "gemma2": "it caps its scores",
    "phi3small": "its sparse attention masks its scores by blocks",
}
"""Architectures that compute attention without MLX's fused kernels, for any size of their heads."""

UNQUANTIZABLE: Mapping[str, str] = {
    **dict.fromkeys(
        ("bailing_hybrid", "bailing_moe_v3", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k25",
         "kimi_k3", "kimi_linear", "kimi_vl", "longcat_flash", "longcat_flash_ngram", "mistral4"),
        "its KV is compressed already, and its attention computes with the parts",
    ),
    **dict.fromkeys(("gpt_oss", "mimo_v2_flash"), "MLX's attention on quantized KV has no sinks"),
    **dict.fromkeys(
        ("gemma2", "phi", "phi3small", "phixtral", "plamo", "plamo2", "stablelm"),
        "its attention does not use mlx-lm's function for quantized KV",
    ),
    "gemma3n": "its layers read the KV of others",
    "minimax_m3_vl": "its sparse attention reads the keys itself",
}  # fmt: skip
"""Architectures whose KV mlx-lm's code can only read in the dtype of the activations."""


def why_unquantizable(name: str) -> str:
    """Why the KV of an architecture can only be in the dtype of the activations; empty if it can be quantized."""
    return UNQUANTIZABLE.get(name, "mlx-vlm's caches are of classes of their own" if is_of_mlx_vlm(name) else "")


WITHOUT_EMBEDDINGS: Mapping[str, str] = dict.fromkeys(
    ("gemma3n", "gpt_neox", "lille-130m", "phixtral"), "mlx-lm's code has no place between its final norm and its head"
)
"""Architectures whose hidden states after the final norm are inaccessible."""


def check_supported(config: Mapping[str, Any], *, unproven: bool = False) -> str:
    """Name of the module for a model of this config. Raises ModelUnsupported, with the reason, unless it is in SUPPORTED: other
    modules are never imported, as some do more than define a model. `unproven`: unless it is in REFUSED, or there is no such
    module.
    """
    model_type, name = config.get("model_type"), module_of(config)
    if name in OF_MLX_VLM:
        vlm_folder(f"Models of type {model_type}")
    if unproven and name not in REFUSED and fingerprint(name):
        return name
    if name in SUPPORTED:
        if fingerprint(name) != PROVEN.get(name):
            raise ModelUnsupported(
                f"Models of type {model_type} are unproven with this mlx-lm: its code for them is not that of the tests.",
                hint=_UNPROVEN,
            )
        return name
    if name in REFUSED:
        raise ModelUnsupported(f"Models of type {model_type} are not supported: {REFUSED[name]}.")
    raise ModelUnsupported(
        f"Models of type {model_type} are not supported: no test proves that cutting it is right, or mlx-lm does not support it.",
        hint=_UNPROVEN if fingerprint(name) else "",
    )


def module_of(config: Mapping[str, Any]) -> str:
    """Name of the module, which may not exist, for a model of this config. Raises ModelUnsupported if it names none."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelUnsupported("The model's config.json names no model_type.")
    if config.get("model_file"):
        raise ModelUnsupported("The model brings code of its own, which Pippin does not run.")
    listed = config.get("architectures")
    keys = [(model_type, each) for each in (listed if isinstance(listed, list) else [listed]) if isinstance(each, str)]
    found = [MODEL_ARCHITECTURE_REMAPPING[key] for key in keys if key in MODEL_ARCHITECTURE_REMAPPING]
    return str(found[0] if found else MODEL_REMAPPING.get(model_type, model_type))


@cache
def fingerprint(name: str) -> str:
    """Of the code of a module and of all that it imports from its package; empty if there is no such module."""
    texts = code_of(name)
    by_name = sorted(texts, key=lambda path: path.with_suffix(""))
    return hashlib.sha256(b"".join(texts[path] for path in by_name)).hexdigest()[:16] if texts else ""


def is_of_mlx_vlm(name: str) -> bool:
    """Whether mlx-vlm has a language model of this name, and mlx-lm no module."""
    path = _module(name)
    return path is not None and path.name == "__init__.py"


def code_of(name: str) -> dict[Path, bytes]:
    """The files of a module and of all that it imports from its package."""
    first = _module(name)
    todo, texts = [first] if first else [], dict[Path, bytes]()
    while todo:
        path = todo.pop()
        if path not in texts:
            texts[path] = path.read_bytes()
            todo += _imported(path, texts[path])
    return texts


def _module(name: str) -> Path | None:
    """Of mlx-lm, else of mlx-vlm."""
    if not name.replace("-", "_").isidentifier():
        return None
    module = Path(mlx_lm.utils.__file__).parent / "models" / f"{name}.py"
    if module.is_file():
        return module
    with suppress(ModelUnsupported):
        package = vlm_folder(name) / "models" / name / "__init__.py"
        if package.is_file():
            return package
    return None


def _imported(path: Path, text: bytes) -> Iterator[Path]:
    """The files of the same package that one imports: modules, or packages."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for each in (*([base] if node.module else []), *(base / alias.name for alias in node.names)):
                yield from (file for file in (each.with_suffix(".py"), each / "__init__.py") if file.is_file())
