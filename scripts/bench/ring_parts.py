"""The comparisons of a ring with stock mlx-lm: pairs of runs, one after the other, and the median of their ratios."""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import prompts
import psutil
from figures import Row, at_least, median
from processes import Child
from ring_nodes import NodeRing
from transformers import AutoTokenizer

PREDICTED_TARGETS = {4: 1.25, 9: 1.45}
"""By the number of tokens of which the prediction's last one is wrong."""
SINGLE_TARGETS = {2: 0.98, 3: 0.97}
PREFILL_TARGET = 1.8
Run = Callable[[], float]
"""Returns tokens per second."""


def batch_target(sessions: int, bandwidth_bound: bool) -> float | None:
    if not bandwidth_bound:
        return 1.85
    return 1.4 if sessions == 16 else None


@dataclass(frozen=True, slots=True)
class Side:
    """Stock or ring: a function for one run, which returns tokens per second, and the processes that do the work."""

    run: Run
    pids: Sequence[int]

    def measured(self) -> "Measured":
        before = [_processor_s(pid) for pid in self.pids]
        rate = self.run()
        return Measured(rate, [_processor_s(pid) - was for pid, was in zip(self.pids, before, strict=True)])


@dataclass(frozen=True, slots=True)
class Measured:
    rate: float
    processor_s: Sequence[float]
    """Processor seconds of each process."""


def _processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Pairs:
    stock: Sequence[Measured]
    ring: Sequence[Measured]

    @property
    def ratio(self) -> float:
        """Ring's tokens per second divided by stock's, median of the pairs."""
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        return self._each(lambda stock, ring: ring.rate / stock.rate)

    def _each(self, ratio: Callable[[Measured, Measured], float]) -> list[float]:
        return [ratio(stock, ring) for stock, ring in zip(self.stock, self.ring, strict=True)]

    def row(self, part: str, what: str) -> Row:
        return {
            "part": part,
            "case": what,
            "stock tok/s": median([each.rate for each in self.stock]),
            "ring tok/s": median([each.rate for each in self.ring]),
            "pairs": len(self.stock),
            "least": round(min(self.ratios), 3),
            "most": round(max(self.ratios), 3),
            "cpu": round(median(self._each(_more_work)), 3),
            "bound": round(median(self._each(_bound)), 3),
            "ratio": round(self.ratio, 3),
        }


def _more_work(stock: Measured, ring: Measured) -> float:
    return sum(ring.processor_s) / sum(stock.processor_s)


def _bound(stock: Measured, ring: Measured) -> float:
    return sum(stock.processor_s) / max(ring.processor_s)


def interleave(count: int, stock: Side, ring: Side) -> Pairs:
    """Run stock and ring in turns, so that a slower or busier machine slows both. The first pair is a warm-up."""
    stock.run()
    ring.run()
    found = [(stock.measured(), ring.measured()) for _ in range(count)]
    return Pairs([pair[0] for pair in found], [pair[1] for pair in found])


def _pairs(count: int, stock: Child, alone: Run, ring: NodeRing, split: Run) -> Pairs:
    return interleave(count, Side(alone, [stock.process.pid]), Side(split, ring.pids))


def single(stock: Child, ring: NodeRing, options: argparse.Namespace) -> Row:
    """(a) Tokens per second of one stream after its first token."""
    prompt = asyncio.run(ring.visible_prompt(options.prompt_tokens))
    tokens: int = options.tokens

    def alone() -> float:
        return _single_rate(stock, prompt, tokens)

    def split() -> float:
        return asyncio.run(ring.stream(prompt, tokens)).rate

    stages = len(ring.cores)
    pairs = _pairs(3 * options.pairs, stock, alone, ring, split)  # runs are cheap, the target fine
    return pairs.row("a", f"one stream, ring of {stages}") | at_least(pairs.ratio, SINGLE_TARGETS[stages])


def predicted(stock: Child, ring: NodeRing, options: argparse.Namespace) -> Iterator[Row]:
    """(e) One stream whose client predicts the answer, but for every n-th token. The text must always be the same."""
    tokens: int = options.tokens
    prompt, answer = _answer_without_repetition(stock, ring, options)
    vocabulary = max(answer) + 1
    stages = len(ring.cores)
    plain = asyncio.run(ring.stream(prompt, tokens)).text
    for every in (0, 2, 4, 9, tokens + 1):
        wrong = [
            token if not every or (place + 1) % every else (token + 1) % vocabulary
            for place, token in enumerate(answer)
        ]
        rounds = {0: "no prediction", tokens + 1: "a right prediction"}
        what = rounds.get(every, f"every {every}th token of the prediction wrong")

        def split(prediction: Sequence[int] = wrong if every else ()) -> float:
            found = asyncio.run(ring.stream(prompt, tokens, prediction))
            if found.text != plain:
                raise SystemExit(f"The text changed: {found.text!r} instead of {plain!r}.")
            return found.rate

        pairs = _pairs(2 * options.pairs, stock, lambda: _single_rate(stock, prompt, tokens), ring, split)
        nodes = f"ring of {stages}" if stages > 1 else "one node"
        row = pairs.row("e", f"{what}, {nodes}")
        yield row | at_least(pairs.ratio, PREDICTED_TARGETS.get(every) if stages == 2 else None)


def _answer_without_repetition(
    stock: Child, ring: NodeRing, options: argparse.Namespace
) -> tuple[list[int], list[int]]:
    """A prompt whose first token is text, and its answer: one that repeats itself would be guessed from the answer."""
    for _ in range(20):
        prompt = asyncio.run(ring.visible_prompt(options.prompt_tokens))
        answer: list[int] = stock.ask(do="single", prompt=prompt, tokens=options.tokens)["tokens"]
        if len(set(answer)) > 0.9 * len(answer):
            return prompt, answer
    raise SystemExit("All answers of this model repeat themselves.")


def _single_rate(stock: Child, prompt: list[int], tokens: int) -> float:
    seconds: float = stock.ask(do="single", prompt=prompt, tokens=tokens)["rest"]
    return (tokens - 1) / seconds


def free_text(
    stock: Child, ring: NodeRing, model: Path, asked: Sequence[list[int]], options: argparse.Namespace
) -> Pairs:
    """Tokens per second of answers that end where the model ends them. The text must be that of stock mlx-lm."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    most: int = options.text_tokens
    expected = [stock.ask(do="answer", prompt=prompt, tokens=most) for prompt in asked]
    texts = [_whole(tokenizer.decode(each["tokens"], skip_special_tokens=True)) for each in expected]

    def alone() -> float:
        answers = [stock.ask(do="answer", prompt=prompt, tokens=most) for prompt in asked]
        return sum(len(each["tokens"]) for each in answers) / sum(float(each["rest"]) for each in answers)

    def split() -> float:
        answers = [asyncio.run(ring.stream(prompt, most, ignore_eos=False)) for prompt in asked]
        if (told := [_whole(each.text) for each in answers]) != texts:
            raise SystemExit(f"The text changed: {told!r} instead of {texts!r}.")
        return sum(each.tokens for each in answers) / sum(each.ended - each.first for each in answers)

    return _pairs(options.pairs, stock, alone, ring, split)


def _whole(text: str) -> str:
    """A text without the part of a character at its end."""
    return text.rstrip("\ufffd")


def chats(model: Path, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of prompts, each a chat with one message."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    turns = [[{"role": "user", "content": text}] for text in texts]
    return [tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False) for turn in turns]


def sessions(stock: Child, ring: NodeRing, options: argparse.Namespace, count: int) -> Row:
    """(b) Tokens per second of many sessions, from the first request sent to the last answer."""
    tokens: int = options.batch_tokens

    def split() -> float:
        return count * tokens / asyncio.run(ring.batch(_batch(count), tokens))

    pairs = _pairs(options.pairs, stock, lambda: _batch_rate(stock, count, tokens), ring, split)
    target = batch_target(count, bandwidth_bound=options.preload is not None)
    return pairs.row("b", f"{count} sessions, ring of 2") | at_least(pairs.ratio, target)


def at_once(stock: Child, other: Child, options: argparse.Namespace, count: int) -> Row:
    """(b) for two stock processes with half of the sessions each and no ring between them."""
    tokens: int = options.batch_tokens

    def both() -> float:
        for child in (stock, other):
            child.tell(do="batch", prompts=_batch(count // 2), tokens=tokens)
        slower: float = max(child.answer()["seconds"] for child in (stock, other))
        return count * tokens / slower

    alone = Side(lambda: _batch_rate(stock, count, tokens), [stock.process.pid])
    pairs = interleave(options.pairs, alone, Side(both, [stock.process.pid, other.process.pid]))
    return pairs.row("b", f"{count} sessions, half in each of 2 stock processes")


def _batch(count: int) -> list[list[int]]:
    return [prompts.token_ids(8) for _ in range(count)]


def _batch_rate(stock: Child, count: int, tokens: int) -> float:
    seconds: float = stock.ask(do="batch", prompts=_batch(count), tokens=tokens)["seconds"]
    return count * tokens / seconds


def prefill(stock: Child, ring: NodeRing, options: argparse.Namespace) -> Row:
    """(c) Prompt tokens per second until the first token. Each run has its own prompt, so nothing is cached."""
    count: int = options.prefill_tokens

    def alone() -> float:
        seconds: float = stock.ask(do="single", prompt=prompts.token_ids(count), tokens=1)["first"]
        return count / seconds

    def split() -> float:
        # A second token, as in any chat: the ring divides prompts by the time of its other steps.
        return count / asyncio.run(ring.stream(prompts.token_ids(count), 2)).ttft

    pairs = _pairs(options.pairs, stock, alone, ring, split)
    row = pairs.row("c", f"prompt of {count}, ring of 2")
    return row | at_least(pairs.ratio, PREFILL_TARGET)
