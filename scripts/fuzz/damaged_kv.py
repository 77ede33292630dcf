"""KV on the nodes' disks, damaged in many ways before a ring that has just been loaded looks for it.

Each round has the model unloaded, damages files of a stored prompt on both nodes, and sends the prompt again: the answer must be
the one of before. What is lost is computed and stored anew for the next round.
"""

import asyncio
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from target import Target

from node.core.frames import Tensor
from node.kv.blocks import BLOCK, decode, encode
from tests.conftest import MODEL, Node, chat_body, until

STORY = " ".join(f"On day {day} we walked {day * 7 % 31} miles to the river." for day in range(1, 82))
TOKENS = 24
CACHES = range(64)
"""More than the model has."""
Block = dict[int, dict[str, Tensor]]
Act = Callable[[bytes, str, bytes, random.Random], bytes]
"""Of a file's bytes, its block's name, another file's bytes."""


async def attack(target: Target, count: int, seed: int) -> None:
    """`count`: rounds."""
    rng, body = random.Random(seed), {**chat_body(STORY), "max_tokens": TOKENS}
    right, _, blocks = await asyncio.to_thread(_ask, target.nodes[0], body)
    stored = await asyncio.to_thread(_stored, target, blocks)
    for number in range(count):
        await asyncio.to_thread(_unload, target)
        for path, data in stored.items():  # what an earlier round has damaged, and nobody has read
            path.unlink(missing_ok=True)
            path.write_bytes(data)
        name = rng.choice(list(DAMAGES))
        damaged = rng.sample(list(stored), rng.choice((1, 2, len(stored))))
        for path in damaged:
            _damage(path, name, list(stored.values()), rng)
        damages = f"{name}: {', '.join(path.name for path in damaged)}"
        node = target.nodes[number % len(target.nodes)]
        text, cached, _ = await asyncio.to_thread(_ask, node, body)
        target.check_processes(f"KV: {damages}")
        target.findings.answers[f"kv: {cached} of {blocks} blocks used"] += 1
        if text != right:
            target.findings.complain(f"KV: {node.name} answers {text!r} instead of {right!r} after {damages}")
        await asyncio.to_thread(_stored, target, blocks)


def _ask(node: Node, body: dict[str, Any]) -> tuple[str, int, int]:
    """The answer, and how many blocks of the prompt were cached, and how many it has."""
    answer = node.post("/v1/chat/completions", body)
    if answer.status != 200:
        return f"{answer.status}: {answer.text}", 0, 0
    usage = answer.json["usage"]
    cached, whole = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
    return str(answer.json["choices"][0]["message"]["content"]), cached // BLOCK, whole // BLOCK


def _stored(target: Target, blocks: int) -> dict[Path, bytes]:
    """The files of the prompt's blocks on all nodes."""
    folders = [target.models.parent / node.name / "kv" for node in target.nodes]
    until(lambda: all(len(_files(folder)) >= blocks for folder in folders), "the prompt's KV is stored")
    return {path: path.read_bytes() for folder in folders for path in _files(folder) if path.is_file()}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def _unload(target: Target) -> None:
    node = target.nodes[0]
    until(lambda: node.post(f"/cluster/models/{MODEL}/unload", {}).status in (200, 404), "the model is unloaded")
    until(lambda: not any(each.status()["models"] for each in target.nodes), "no ring is left")


# --- damages ----------------------------------------------------------------------------------------------------------


def _damage(file: Path, damage: str, others: Sequence[bytes], rng: random.Random) -> None:
    file.write_bytes(DAMAGES[damage](file.read_bytes(), file.name.partition(".")[0], rng.choice(others), rng))
    if damage == "gone":
        file.unlink()
        file.symlink_to("nothing")  # so that one sees whether the node has noticed it, and written it anew


def _flipped(data: bytes, _name: str, _other: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    for _ in range(rng.choice((1, 1, 20))):
        at = rng.randrange(min(rng.choice((8, 200, 2000, len(data))), len(data)))
        flipped[at] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _rewritten(change: Callable[[Block, random.Random], None]) -> Act:
    """Damage what is in a block, whose digests then fit."""

    def act(data: bytes, name: str, _other: bytes, rng: random.Random) -> bytes:
        block = decode(io.BytesIO(data), name, CACHES)
        change(block, rng)
        return b"".join(encode(name, block))

    return act


def _each(change: Callable[[Tensor, random.Random], Tensor]) -> Callable[[Block, random.Random], None]:
    def act(block: Block, rng: random.Random) -> None:
        for tensors in block.values():
            for key, tensor in tensors.items():
                tensors[key] = change(tensor, rng)

    return act


def _reshaped(tensor: Tensor, rng: random.Random) -> Tensor:
    rows, heads, tokens, size = tensor.shape
    shapes = [(heads, rows, size, tokens), (rows, heads * size, tokens, 1), (tokens, heads, rows, size)]
    return replace(tensor, shape=rng.choice([shape for shape in shapes if shape != tensor.shape]))


def _half(tensor: Tensor, rng: random.Random) -> Tensor:
    axis = rng.choice([k for k, size in enumerate(tensor.shape) if size % 2 == 0])
    shape = tuple(size // 2 if k == axis else size for k, size in enumerate(tensor.shape))
    return replace(tensor, shape=shape, data=bytes(tensor.data)[: len(tensor.data) // 2])


def _retyped(tensor: Tensor, _rng: random.Random) -> Tensor:
    if tensor.dtype in ("float32", "uint32"):
        return replace(tensor, dtype="uint32" if tensor.dtype == "float32" else "float32")
    return replace(tensor, dtype="float16" if tensor.dtype == "bfloat16" else "bfloat16")


def _without(block: Block, rng: random.Random) -> None:
    tensors = block[rng.choice(list(block))]
    if rng.random() < 0.3:
        tensors.clear()
    else:
        tensors.pop(rng.choice(list(tensors)))


def _renamed(block: Block, rng: random.Random) -> None:
    tensors = block[rng.choice(list(block))]
    tensors[rng.choice(("0.key", "1.keys", "x", ""))] = tensors.pop(rng.choice(list(tensors)))


DAMAGES: dict[str, Act] = {
    "gone": lambda data, _name, _other, _rng: data,
    "empty": lambda _data, _name, _other, _rng: b"",
    "cut": lambda data, _name, _other, rng: data[: rng.randrange(len(data))],
    "longer": lambda data, _name, _other, rng: data + rng.randbytes(40),
    "shifted": lambda data, _name, _other, rng: rng.randbytes(rng.choice((1, 8))) + data,
    "noise": lambda data, _name, _other, rng: rng.randbytes(len(data)),
    "flipped": _flipped,
    "another block": lambda _data, _name, other, _rng: other,
    "other shapes": _rewritten(_each(_reshaped)),
    "half": _rewritten(_each(_half)),
    "another dtype": _rewritten(_each(_retyped)),
    "without tensors": _rewritten(_without),
    "other names": _rewritten(_renamed),
}
