#!/usr/bin/env python3
"""Trains a model for one task of editing (see edit_task.py), for `scripts/bench.py edit`. Some four minutes on one core.

    scripts/train_edit_model.py --out DIR

A small model learns the answer. It is then made wider and deeper with weights that add nothing to the output, so that a
token takes as long as a larger model's. See train_demo_model.py for a quick BLAS on Linux.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import edit_task
import mlx.core as mx
from demo_corpus import Dialog
from make_model import save_weights, weights_of
from mlx import optimizers as optim
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx_lm.models.llama import Model, ModelArgs
from train_demo_model import CONFIG, CONTROL_TOKENS, END, SHARDS, grow, save_small_files, train_tokenizer

HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
"""Few, because the scores of attention are most of the work of training."""
SMALL: dict[str, Any] = CONFIG | HEADS | {"num_hidden_layers": 3, "max_position_embeddings": 8192}
ENOUGH = 0.002
"""Loss at which every token of the answer is the most likely one by far."""


def learn(model: Model, tokens: list[int], begin: int, args: argparse.Namespace) -> None:
    """Learn the tokens from `begin` on."""
    rise = optim.linear_schedule(0, args.lr, 30)
    fall = optim.cosine_decay(args.lr, args.steps)
    optimizer = optim.AdamW(optim.join_schedules([rise, fall], [30]), betas=[0.9, 0.98], weight_decay=0.0)
    inputs, targets = mx.array([tokens[:-1]]), mx.array(tokens[begin:])

    def loss(model: Model) -> mx.array:
        hidden = model.model(inputs)[0, begin - 1 :]
        return cross_entropy(model.model.embed_tokens.as_linear(hidden), targets, reduction="mean")

    loss_and_gradients = value_and_grad(model, loss)
    started = time.monotonic()
    for step in range(1, args.steps + 1):
        value, gradients = loss_and_gradients(model)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)  # type: ignore[no-untyped-call]
        optimizer.update(model, gradients)
        mx.eval(model.state, optimizer.state)
        if step % 10 == 0 or value.item() < ENOUGH:
            print(f"step {step}  loss {value.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)
        if value.item() < ENOUGH:
            return


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model for a task of editing.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--layers", type=int, default=12, help="of the larger model (default: %(default)s)")
    parser.add_argument("--inner", type=int, default=8192, help="size of its MLP (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="maximum (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    mx.random.seed(edit_task.SEED)
    files = [Dialog(text=edit_task.source(seed)) for seed in range(50)]
    tokenizer = train_tokenizer([*files, Dialog(text=f"{edit_task.REQUEST}\n\n{edit_task.NEW}(a, b)\n" * 100)])
    asked = tokenizer.apply_chat_template(edit_task.messages(), add_generation_prompt=True, return_dict=False)
    answer = tokenizer.encode(edit_task.renamed() + CONTROL_TOKENS[END], add_special_tokens=False)
    print(f"{len(asked)} tokens of prompt, {len(answer)} of answer", flush=True)
    small = Model(ModelArgs.from_dict(SMALL))
    learn(small, [*asked, *answer], len(asked), args)
    config = SMALL | {"num_hidden_layers": args.layers, "intermediate_size": args.inner}
    large = Model(ModelArgs.from_dict(config))
    grow(large, weights_of(small))
    save_small_files(tokenizer, config, args.out)
    save_weights(large, args.out, SHARDS)


if __name__ == "__main__":
    main()
