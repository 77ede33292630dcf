#!/usr/bin/env python3
"""Writes a model of a real shape with random weights, in Hugging Face format, for tests and benchmarks.

    scripts/make_model.py --preset 25m --out /tmp/25m
    scripts/make_model.py --preset qwen3-0.6b --out /tmp/qwen --dtype bf16 --quantize 4 --shards 3
    scripts/make_model.py --preset 25m --out /tmp/25m-mtp --mtp 0.8    # with an MTP layer that is right for 80 % of the tokens

The tokenizer is that of the built-in model. If the real vocabulary is larger, generated words fill it, because random
weights sample any token and each needs a text.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _get_classes, get_total_parameters, quantize_model, save_config

DEMO = Path(__file__).resolve().parent.parent / "node" / "builtin" / "pippin-demo"
TOKENIZER_FILES = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")
MTP_FILE = "mtp.safetensors"
DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
Config = dict[str, Any]


def llama(shape: tuple[int, int, int, int, int], vocab: int = 2048, **more: Any) -> Config:
    """The shape is (hidden size, layers, heads, KV heads, size of the MLP)."""
    hidden, layers, heads, kv_heads, inner = shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "head_dim": hidden // heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        **more,
    }


def qwen3(shape: tuple[int, int, int, int, int], vocab: int = 2048, **more: Any) -> Config:
    kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 40960}
    return llama(shape, vocab, **{**kind, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, **more})


LLAMA3_ROPE = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
PRESETS: dict[str, Config] = {
    "tiny": llama((64, 4, 4, 2, 160)),
    "tiny-qwen3": qwen3((64, 4, 4, 2, 160)),
    "25m": llama((384, 14, 6, 2, 1152)),
    "110m": llama((768, 14, 12, 4, 2048), 32000),
    "400mb": llama((768, 16, 12, 4, 2048)),
    "qwen3-0.6b": qwen3((1024, 28, 16, 8, 3072), 151936, head_dim=128),
    "llama-1b": llama(
        (2048, 16, 32, 8, 8192), 128256, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, max_position_embeddings=131072
    ),
}


def build(config: Config, dtype: mx.Dtype, seed: int) -> Module:
    """Build the model with random weights. The layers outweigh the embedding, so the output does
    not repeat the input.
    """
    mx.random.seed(seed)
    model_class, arguments = _get_classes(config)
    model: Module = model_class(arguments.from_dict(config))

    def spread(path: str, value: mx.array) -> mx.array:
        if "norm" in path:
            return mx.ones(value.shape, dtype)
        return mx.random.normal(value.shape, scale=1.5 / value.shape[-1] ** 0.5).astype(dtype)

    model.update(tree_map_with_path(spread, model.parameters()))  # type: ignore[no-untyped-call]
    return model


def build_foretold(config: Config, dtype: mx.Dtype, seed: int, right: float) -> tuple[Module, dict[str, mx.array]]:
    """Build a Llama whose next token depends on the last one alone, and its MTP layer, which knows it for the share `right` of
    the tokens. Their layers add nothing, but take the time of others.

    The tokens follow each other in one cycle: the row of the LM head for a token is the embedding of the one before it. The first
    number of an embedding marks the tokens after which the MTP layer is wrong; the LM head does not read it.
    """
    model = build(config, dtype, seed)
    vocab, width = config["vocab_size"], config["hidden_size"]
    weights = weights_of(model)
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = mx.zeros_like(value)
    embedding = mx.random.normal((vocab, width))
    embedding = embedding / mx.linalg.norm(embedding, axis=1, keepdims=True)
    after = mx.random.permutation(vocab)  # the order of the cycle
    plain = embedding * (mx.arange(width) > 0)
    head = mx.zeros_like(plain)
    head[mx.roll(after, -1)] = plain[after]
    embedding[:, 0] = mx.where(mx.random.uniform(shape=(vocab,)) < right, 0.0, 1.0)
    weights |= {"model.embed_tokens.weight": embedding.astype(dtype), "lm_head.weight": 30 * head.astype(dtype)}
    model.load_weights(list(weights.items()))
    layer = {name.partition("layers.0.")[2]: value for name, value in weights.items() if "layers.0." in name}
    fc = mx.concatenate([mx.eye(width), mx.zeros((width, width))], axis=1)
    fc[:, 0] = 4 * head[0]
    ones = mx.ones((width,), dtype)
    norms = {f"mtp.{name}.weight": ones for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return model, {f"mtp.layers.0.{name}": value for name, value in layer.items()} | norms | {
        "mtp.fc.weight": fc.astype(dtype)
    }


def add_mtp(tensors: dict[str, mx.array], out: Path) -> None:
    """Save the tensors of an MTP layer in a file of their own, which mlx-lm does not read, as its Llama takes none."""
    mx.save_safetensors(str(out / MTP_FILE), tensors, metadata={"format": "mlx"})
    path = out / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    places = {name: file for name, file in index["weight_map"].items() if file != MTP_FILE}
    index["weight_map"] = dict(sorted({**places, **dict.fromkeys(tensors, MTP_FILE)}.items()))
    path.write_text(json.dumps(index, indent=2) + "\n")


def weights_of(model: Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))  # type: ignore[no-untyped-call]


def split_weights(model: Module, shards: int) -> list[dict[str, mx.array]]:
    """Divide the weights into files of similar size, in the order of the layers, as published models do."""
    weights = weights_of(model)
    total = sum(value.nbytes for value in weights.values())
    files: list[dict[str, mx.array]] = [{} for _ in range(shards)]
    before = 0
    for name, value in weights.items():
        files[min(before * shards // total, shards - 1)][name] = value
        before += value.nbytes
    return [file for file in files if file]


def save_weights(model: Module, out: Path, shards: int = 1) -> None:
    """Save as mlx_lm.utils.save_model does, which can't make files smaller than a gigabyte."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("model*.safetensors*"):
        old.unlink()
    files = split_weights(model, shards)
    places = {}
    for i, file in enumerate(files, 1):
        name = f"model-{i:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        mx.save_safetensors(str(out / name), file, metadata={"format": "mlx"})
        places.update(dict.fromkeys(file, name))
    size = sum(value.nbytes for file in files for value in file.values())
    metadata = {"total_size": size, "total_parameters": get_total_parameters(model)}
    index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def copy_tokenizer(config: Config, out: Path) -> None:
    for name in TOKENIZER_FILES:
        shutil.copyfile(DEMO / name, out / name)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    # No merge produces these tokens, so only the model writes them. "Ġ" is the byte-level form of a space.
    vocabulary.update({f"Ġw{i}": i for i in range(len(vocabulary), config["vocab_size"])})
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    demo = json.loads((DEMO / "config.json").read_text())
    config.update({key: demo[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a model of a real shape with random weights.")
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--quantize", type=int, choices=(4, 8), help="bits per weight")
    parser.add_argument(
        "--mtp", type=float, metavar="SHARE", help="add an MTP layer that is right so often; a Llama, not quantized"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1, help="number of weight files")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    config = dict(PRESETS[args.preset])
    dtype = DTYPES[args.dtype]
    config["torch_dtype"] = str(dtype).removeprefix("mlx.core.")
    args.out.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(config, args.out)
    if args.mtp is None:
        model = build(config, dtype, args.seed)
    else:
        config["tie_word_embeddings"] = False
        model, mtp = build_foretold(config, dtype, args.seed, args.mtp)
    parameters = get_total_parameters(model)
    if args.quantize:
        group = 32 if args.preset.startswith("tiny") else 64
        model, config = quantize_model(model, config, group_size=group, bits=args.quantize)
    save_weights(model, args.out, args.shards)
    if args.mtp is not None:
        add_mtp(mtp, args.out)
    save_config(config, args.out / "config.json")
    size = sum(file.stat().st_size for file in args.out.glob("*.safetensors"))
    kind = f"{args.quantize} bits" if args.quantize else args.dtype
    print(f"{args.out}: {args.preset}, {config['num_hidden_layers']} layers, {parameters / 1e6:.1f} M parameters, "
          f"{kind}, {size / 1e6:.0f} MB in {len(list(args.out.glob('*.safetensors')))} file(s)")  # fmt: skip


if __name__ == "__main__":
    main()
