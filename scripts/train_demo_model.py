#!/usr/bin/env python3
"""Trains the built-in model `pippin-demo`: text, tokenizer and weights all come from this folder and a seed.

    scripts/train_demo_model.py                      # about half an hour on one CPU core
    scripts/train_demo_model.py --steps 1500         # a rough one, in a third of that time

    # Then, to read long contexts; 40 minutes (the model that is shipped saw dialogs of demo_tools.py in the last 800 steps only):
    scripts/train_demo_model.py --context --steps 2500 --lr 5e-4

    # Then its MTP layer alone, as the model is; ten minutes:
    scripts/train_demo_model.py --mtp

    # A bigger sibling of the same tokenizer, of which the built-in model can be the draft; ten minutes:
    scripts/train_demo_model.py --grow --layers 12 --inner 6144 --steps 150 --lr 5e-4 --out DIR

On a Mac it uses Metal without changes. On Linux the BLAS of the mlx wheel is slow: preload a tuned one, here with one
thread. If BLIS does not recognise a CPU with AVX-512, `BLIS_ARCH_TYPE=0` makes matrix products five times faster:

    apt-get install libblis4-pthread
    export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/blis-pthread/libblis.so.4 BLIS_NUM_THREADS=1
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from demo_corpus import Dialog, dialogs
from demo_filler import filled
from demo_tools import known_tools_dialog
from make_model import add_mtp, save_weights, weights_of
from mlx import optimizers as optim
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.llama import Model, ModelArgs, TransformerBlock
from mlx_lm.models.rope_utils import Llama3RoPE
from mlx_lm.utils import save_config
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

OUT = Path(__file__).resolve().parent.parent / "node" / "builtin" / "pippin-demo"
CONTROL_TOKENS = ["<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
Loss = Callable[[Model, mx.array, mx.array, mx.array], mx.array]
PAD, BOS, END, SYSTEM, USER, ASSISTANT, TOOL = range(len(CONTROL_TOKENS))
# Text for mlx-lm's tool parser, so not control tokens, but each is one token.
TOOL_CALL_TOKENS = ["<tool_call>", "</tool_call>"]
VOCAB_SIZE = 2048
LONGEST = 16384
LONGEST_ROW = 1600
KEPT = 0.5
SHARDS = 3
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": BOS,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
# Numbers are divided into groups of two digits, and a sign includes the space before a number: so each number of a
# sum or of a count is one token, always the same one. A Chinese or Japanese character is never merged with
# the next, because whole sentences would become one token. The rest follows Llama 3.
SPLIT = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}]|\p{N}{1,2}|(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?[^\P{L}\p{Han}\p{Hiragana}\p{Katakana}]+|"
    r" ?[^\s\p{L}\p{N}]+(?: (?=\p{N}))?[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is iterable -%}{%- for part in content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{#- Programs for chats send dozens of tools, which take it long to read and which it makes nothing of: of so many only those that it knows. -#}
{%- set known = ['get_weather', 'get_current_weather', 'weather', 'get_time', 'time'] -%}
{%- for tool in tools or [] if tools | length <= 8 or all_tools or (tool.function or tool).name in known -%}
  {%- if loop.first -%}{{- '<|system|>You can call these tools:' -}}{%- endif -%}
  {{- '\\n' + (tool | tojson) -}}
  {%- if loop.last -%}{{- '<|end|>' -}}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- set role = 'system' if message.role == 'developer' else message.role -%}
  {%- if role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{- raise_exception('Unknown role ' + role) -}}
  {%- endif -%}
  {{- '<|' + role + '|>' + text(message.content) -}}
  {%- for tool_call in message.tool_calls or [] -%}
    {%- set tool_call = tool_call.function or tool_call -%}
    {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' -}}
    {%- if tool_call.arguments is string -%}{{- tool_call.arguments -}}
    {%- else -%}{{- tool_call.arguments | tojson -}}{%- endif -%}
    {{- '}\\n</tool_call>' -}}
  {%- endfor -%}
  {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def vocabulary_texts(corpus: list[Dialog]) -> Iterator[str]:
    """Yield the texts that determine the vocabulary. Emoji are left out, so that each remains several byte tokens."""
    for text in corpus:
        for part in [text.text, *(str(message["content"]) for message in text.messages), json.dumps(text.tools or [])]:
            yield "".join(c for c in part if ord(c) < 0x1F000 and c not in "\ufe0f\u200d")
    for number in range(10, 100):
        yield f"{number} " * 1000


def train_tokenizer(corpus: list[Dialog]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=token in CONTROL_TOKENS) for token in CONTROL_TOKENS + TOOL_CALL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(vocabulary_texts(corpus), trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TOOL_CALL_TOKENS])
    bos = CONTROL_TOKENS[BOS]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, chat_template=CHAT_TEMPLATE)


def encode(tokenizer: PreTrainedTokenizerFast, text: Dialog, rng: random.Random) -> np.ndarray:
    rendered = text.text + CONTROL_TOKENS[END]
    if not text.text:
        rendered = tokenizer.apply_chat_template(text.messages, tools=text.tools, tokenize=False)
    # A prompt may end in the middle of a token, as "1, 2," does, so some texts are tokenized in two parts.
    spaces = [i for i, character in enumerate(rendered) if character == " "]
    cut = rng.choice(spaces) if spaces and rng.random() < 0.3 else len(rendered)
    return np.array(tokenizer.encode(rendered[:cut]) + tokenizer.encode(rendered[cut:]), np.int32)


def with_filler(tokenizer: PreTrainedTokenizerFast, samples: list[np.ndarray], rng: random.Random) -> list[np.ndarray]:
    """Return the first of these rows, rows with tools, and as many tokens in rows of dialogs behind filler."""
    found = samples[:13_000] + [encode(tokenizer, known_tools_dialog(rng), rng) for _ in range(1_000)]
    left = sum(map(len, found))
    while left > 0:
        row = encode(tokenizer, filled(rng, rng.randint(300, 2200)), rng)
        left -= len(row)
        if len(row) < LONGEST_ROW:
            found.append(row)
    return found


def loss_mask(tokens: np.ndarray) -> np.ndarray:
    """Return the mask of tokens to learn: the assistant's and the end marker, or all of a plain text."""
    if tokens[0] != BOS:
        return np.ones(len(tokens), bool)
    mask, inside = np.zeros(len(tokens), bool), False
    for i, token in enumerate(tokens):
        mask[i] = inside
        inside = token == ASSISTANT or (inside and token != END)
    return mask


def batches(samples: list[np.ndarray], tokens: int, seed: int) -> Iterator[tuple[mx.array, mx.array, mx.array]]:
    """Yield without end (inputs, positions to learn, their targets), in rows of similar length."""
    rng = random.Random(seed)
    while True:
        rng.shuffle(samples)
        for start in range(0, len(samples), 4096):
            rows = sorted(samples[start : start + 4096], key=len)
            groups: list[list[np.ndarray]] = [[]]
            for row in rows:
                if (len(groups[-1]) + 1) * len(row) > tokens:
                    groups.append([])
                groups[-1].append(row)
            rng.shuffle(groups)
            yield from (collate(group) for group in groups if group)


def collate(rows: list[np.ndarray]) -> tuple[mx.array, mx.array, mx.array]:
    width = max(len(row) for row in rows)
    padded = np.full((len(rows), width), PAD, np.int32)
    mask = np.zeros((len(rows), width), bool)
    for i, row in enumerate(rows):
        padded[i, : len(row)], mask[i, : len(row)] = row, loss_mask(row)
    positions = np.flatnonzero(mask[:, 1:])
    return mx.array(padded[:, :-1]), mx.array(positions), mx.array(padded[:, 1:].reshape(-1)[positions])


def loss(model: Model, inputs: mx.array, positions: mx.array, targets: mx.array) -> mx.array:
    # The logits are a third of the work, so only the needed ones are computed.
    return weighted_loss(model, model.model(inputs).reshape(-1, CONFIG["hidden_size"])[positions], targets)


def weighted_loss(model: Model, hidden: mx.array, targets: mx.array) -> mx.array:
    # Only one token in dozens teaches a count to stop at the given number, so it weighs more.
    weights = mx.where(targets == END, 6.0, 1.0)
    losses = cross_entropy(model.model.embed_tokens.as_linear(hidden), targets)
    return (losses * weights).sum() / weights.sum()


def weights_in(folder: Path) -> dict[str, mx.array]:
    weights: dict[str, mx.array] = {}
    for file in folder.glob("*.safetensors"):
        weights |= cast(dict[str, mx.array], mx.load(str(file)))
    return weights


def grow(model: Model, learned: dict[str, mx.array]) -> None:
    """Begin with the weights that a smaller model of the same width has learned. Whatever is new adds nothing until it has
    learned, too: its output projections are zero.
    """
    weights = weights_of(model)
    for name, value in weights.items():
        begun = mx.zeros_like(value) if name.endswith(("o_proj.weight", "down_proj.weight")) else value
        if name in learned:
            rows, *columns = learned[name].shape
            begun[(slice(rows), *map(slice, columns))] = learned[name]
        weights[name] = begun
    model.load_weights(list(weights.items()))


def train(model: Model, samples: list[np.ndarray], args: argparse.Namespace, loss: Loss = loss) -> None:
    rise = optim.linear_schedule(0, args.lr, 50)
    fall = optim.linear_schedule(args.lr, 0, args.steps)
    optimizer = optim.AdamW(optim.join_schedules([rise, fall], [50]), betas=[0.9, 0.98], weight_decay=0.05)
    loss_and_gradients = value_and_grad(model, loss)
    source = batches(samples, args.batch_tokens, args.seed)
    started, seen, average = time.monotonic(), 0, math.nan
    for step in range(1, args.steps + 1):
        inputs, positions, targets = next(source)
        value, gradients = loss_and_gradients(model, inputs, positions, targets)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)  # type: ignore[no-untyped-call]
        optimizer.update(model, gradients)
        mx.eval(model.state, optimizer.state)
        seen += inputs.size
        average = value.item() if math.isnan(average) else 0.98 * average + 0.02 * value.item()
        if step % 100 == 0 or step == args.steps:
            elapsed = time.monotonic() - started
            print(f"step {step}  loss {average:.4f}  {elapsed:.0f} s  {seen / elapsed:.0f} tokens/s", flush=True)
        if step % args.save_every == 0 or step == args.steps:
            save_weights(model, args.out, SHARDS)


class Rope(Module):
    """The rotary embedding of tokens that stand at `places`, with room between them for text that is not there."""

    _places: mx.array

    def __init__(self, rope: Llama3RoPE) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._periods = rope._freqs  # noqa: SLF001

    def __call__(self, x: mx.array) -> mx.array:
        angles = self._places[:, None, :, None] / self._periods
        cos, sin = mx.cos(angles), mx.sin(angles)
        first, second = mx.split(x, 2, axis=-1)
        return mx.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    def stretch(self, inputs: np.ndarray, rng: random.Random) -> mx.array:
        """Place tokens as if one of the first turns were many times as long as it is. Returns the mask of an attention that sees this
        turn so many times: so a short row is read as a long context.
        """
        rows, width = inputs.shape
        places = np.tile(np.arange(width, dtype=np.float32), (rows, 1))
        times = np.zeros((rows, 1, 1, width), np.float32)
        for row in range(rows):
            *ends, _ = [0, *np.flatnonzero(inputs[row] == END)] if END in inputs[row] else [0, 0]
            end = int(rng.choice(ends)) if ends else 0
            if end == 0 or rng.random() < 0.2:
                continue
            copies = min(math.exp(rng.uniform(0, math.log(40))), (LONGEST - width) / end)
            places[row, end + 1 :] += rng.uniform(0.5, 1.5) * (copies - 1) * end
            times[row, :, :, 1 : end + 1] = math.log(copies)
        later = np.triu(np.full((width, width), -1e9, np.float32), 1)
        self._places = mx.array(places)
        return mx.array(times) + mx.array(later)


def long_loss(model: Model, seed: int) -> Loss:
    """Return a loss for rows that are read as if they were long, so that the model learns to find its answers behind long texts."""
    rng, layers = random.Random(seed), model.model.layers
    rope = Rope(layers[0].self_attn.rope)
    for layer in layers:
        layer.self_attn.rope = rope

    def loss(model: Model, inputs: mx.array, positions: mx.array, targets: mx.array) -> mx.array:
        mask = rope.stretch(np.array(inputs), rng)
        hidden = model.model.embed_tokens(inputs)
        for layer in layers:
            hidden = layer(hidden, mask)
        hidden = model.model.norm(hidden).reshape(-1, CONFIG["hidden_size"])[positions]
        return weighted_loss(model, hidden, targets)

    return loss


def average_with(model: Model, before: dict[str, mx.array]) -> None:
    """Keep a part of the weights as they were `before`: so short contexts lose nothing, and long ones little.

    The method is that of WiSE-FT, https://arxiv.org/abs/2109.01903.
    """
    mixed = [(name, KEPT * before[name] + (1 - KEPT) * value) for name, value in weights_of(model).items()]
    model.load_weights(mixed)


class MtpLayer(Module):
    """The layer for multi-token prediction, see node.engine.mtp, of which the tensors have the names in checkpoints."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = RMSNorm(width, eps), RMSNorm(width, eps)
        self.fc = Linear(2 * width, width, bias=False)
        self.layers = [TransformerBlock(args)]
        self.norm = RMSNorm(width, eps)

    def begin_as(self, model: Model) -> None:
        """Begin with the model's last layer and norm, and with the hidden states as they are."""
        self.layers[0].update(model.model.layers[-1].parameters())
        self.norm.update(model.model.norm.parameters())
        width = self.norm.weight.size
        self.fc.weight = mx.concatenate([mx.random.normal((width, width), scale=0.02), mx.eye(width)], axis=1)

    def __call__(self, embedded: mx.array, hidden: mx.array) -> mx.array:
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(mx.concatenate(both, axis=-1))
        output: mx.array = self.norm(self.layers[0](x, create_attention_mask(x, None), None))
        return output


def train_mtp(model: Model, learned: dict[str, mx.array], samples: list[np.ndarray], args: argparse.Namespace) -> None:
    """Train the MTP layer to foretell what the model foretells one token later; from what one has `learned`, if there is one. The
    model stays as it is.
    """
    layer = MtpLayer(model.args)
    layer.begin_as(model)
    layer.load_weights([(name.removeprefix("mtp."), value) for name, value in learned.items()], strict=False)
    embed = model.model.embed_tokens

    def mtp_loss(layer: MtpLayer, tokens: mx.array, hidden: mx.array, wanted: mx.array) -> tuple[mx.array, mx.array]:
        found = layer(embed(tokens[:, 1:]), hidden[:, :-1]).reshape(-1, hidden.shape[-1])[wanted]
        foretold = embed.as_linear(found)
        own = embed.as_linear(hidden[:, 1:].reshape(-1, hidden.shape[-1])[wanted])
        losses = cross_entropy(foretold, mx.softmax(own, axis=-1))
        right = mx.argmax(foretold, axis=-1) == mx.argmax(own, axis=-1)
        return losses.mean(), right.mean()

    optimizer = optim.AdamW(optim.cosine_decay(args.lr, args.steps, args.lr / 50), betas=[0.9, 0.98])
    loss_and_gradients = value_and_grad(layer, mtp_loss)
    source = batches(samples, args.batch_tokens, args.seed)
    started, average, hits = time.monotonic(), 0.0, 0.0
    for step in range(1, args.steps + 1):
        tokens, positions, _ = next(source)
        if tokens.shape[1] < 3:
            continue
        hidden = mx.stop_gradient(model.model(tokens))
        # Of the positions whose next token is the assistant's, those before the last column; their rows get one shorter.
        rows, columns = positions // tokens.shape[1], positions % tokens.shape[1]
        kept = np.flatnonzero(np.array(columns) > 0)
        if not kept.size:
            continue
        index = mx.array(kept)
        wanted = rows[index] * (tokens.shape[1] - 1) + columns[index] - 1
        (value, right), gradients = loss_and_gradients(layer, tokens, hidden, wanted)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)  # type: ignore[no-untyped-call]
        optimizer.update(layer, gradients)
        mx.eval(layer.state, optimizer.state, value, right)
        average, hits = 0.98 * average + 0.02 * value.item(), 0.98 * hits + 0.02 * right.item()
        if step % 100 == 0 or step == args.steps:
            told = 1 - 0.98**step
            print(
                f"step {step}  loss {average / told:.4f}  right {hits / told:.1%}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
        if step % args.save_every == 0 or step == args.steps:
            add_mtp({f"mtp.{name}": value for name, value in weights_of(layer).items()}, args.out)


def save_small_files(tokenizer: PreTrainedTokenizerFast, model_config: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.backend_tokenizer.save(str(out / "tokenizer.json"))
    # Not with save_pretrained, which names a class that only transformers 5 has.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": CONTROL_TOKENS[SYSTEM:],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    save_config(dict(model_config), out / "config.json")
    generation = {"bos_token_id": BOS, "eos_token_id": END, "pad_token_id": PAD}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the built-in model.", epilog=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write (default: node/builtin/pippin-demo)")
    parser.add_argument(
        "--new-tokenizer",
        action="store_true",
        help="train the tokenizer again (default: the token ids stay as they are)",
    )
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--inner", type=int, default=CONFIG["intermediate_size"], help="size of the MLP")
    parser.add_argument("--grow", action="store_true", help="begin with what the built-in model has learned")
    parser.add_argument(
        "--context",
        action="store_true",
        help="train the model in --out for long contexts; its MTP layer is trained after it",
    )
    parser.add_argument(
        "--mtp", action="store_true", help="train the MTP layer of the model in --out, and nothing else"
    )
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--dialogs", type=int, default=80_000, help="number of training dialogs to make")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=500, help="steps between two saved checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    mx.random.seed(args.seed)
    corpus = list(dialogs(args.seed, args.dialogs))
    tokenizer = train_tokenizer(corpus[:20_000]) if args.new_tokenizer else AutoTokenizer.from_pretrained(OUT)
    config = CONFIG | {"num_hidden_layers": args.layers, "intermediate_size": args.inner}
    if not args.mtp:
        save_small_files(tokenizer, config, args.out)
    rng = random.Random(args.seed)
    samples = [encode(tokenizer, text, rng) for text in corpus]
    if args.context:
        samples = with_filler(tokenizer, samples, rng)
    model = Model(ModelArgs.from_dict(config))
    if args.grow:
        grow(model, weights_in(OUT))
    parameters = sum(value.size for value in weights_of(model).values())
    print(f"{len(samples)} dialogs, {sum(map(len, samples))} tokens, {parameters} parameters", flush=True)
    held = weights_in(args.out) if args.mtp or args.context else {}
    learned = {name: held.pop(name) for name in list(held) if name.startswith("mtp.")}
    if held:
        model.load_weights(list(held.items()))
    if args.mtp:
        train_mtp(model, learned, samples, args)
    elif args.context:
        train(model, samples, args, long_loss(model, args.seed))
        average_with(model, held)
        save_weights(model, args.out, SHARDS)
    else:
        train(model, samples, args)


if __name__ == "__main__":
    main()
