"""How many tokens of a real model's answers are guessed by what was said before, with nobody's help.

SmolLM2-135M-Instruct (see scripts/real_model.py) answers everyday tasks of six kinds, others like them, and agents that write
whole files, greedily and as its card proposes (guess_tasks.toml). That takes some minutes, once: the tokens are kept in --answers.
Then the product's own guesser follows them, without a node, so the counts are exact and the same on any machine:

  first         the six tasks, each of a client of whom nothing is known
  after others  each after the other tasks, of the same client
  again         the six tasks, each answered greedily before
  agents        turns that write a file anew, whose prompts hold the turns before
  files         with --files: the new version of a file of this repository, after six others and its older versions
"""

import argparse
import importlib
import json
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import figures
import mlx.core as mx
import mlx_lm
import real_model
from figures import Row, at_least, median, report
from mlx_lm.sample_utils import make_sampler
from tokenizers import Tokenizer

from node.core.guesses import LENGTHS, Guesser, PassageMemory

HELP = "a real model's answers: tokens that are guessed, without a node"
TASKS = Path(__file__).resolve().parent / "guess_tasks.toml"
TARGET = 1.3
"""Of a ring of two, in relation to one node, by the formula."""
STAGES = 2
SAMPLERS: dict[str, dict[str, float]] = {"greedy": {"temp": 0.0}, "sampled": {"temp": 0.2, "top_p": 0.9}}
MOST_TOKENS = 400
OWNER = "a client"
FILES = ("ring/scheduler", "ring/admission", "engine/runner", "cluster/head", "gateway/router", "placement/place")
VERSIONS = 4
NOTES = (
    "tau    tokens of a round that ends with a token that was not guessed",
    f"speed  of a ring of {STAGES} over one node: tau / (1 + (tau - 1) / {STAGES}), without the time of hops; the median of the answers",
    "us     processor time of a token of the answer, the prompt's tokens included",
)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer, as tokens."""

    name: str
    sampling: str
    prompt: list[int]
    answer: list[int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = real_model.CACHE / "answers.json"
    parser.add_argument(
        "--answers", type=Path, default=default, help="file of the model's answers (default: %(default)s)"
    )
    parser.add_argument("--files", action="store_true", help="also versions of files, from git's history")


def run(options: argparse.Namespace) -> list[Row]:
    if not options.answers.exists():
        options.answers.write_text(json.dumps([asdict(text) for text in _answered()]) + "\n")
    texts = [Text(**text) for text in json.loads(options.answers.read_text())]
    tasks = tomllib.loads(TASKS.read_text())
    six, others = ({task["name"] for task in tasks[kind]} for kind in ("task", "before"))
    rows: list[Row] = []
    greedy = {text.name: text for text in texts if text.sampling == "greedy"}
    for sampling in SAMPLERS:
        own = [text for text in texts if text.sampling == sampling]
        asked = [text for text in own if text.name in six]
        before = [text for text in own if text.name in others]
        rows += _rows("first", sampling, asked)
        rows += _rows("after others", sampling, asked, {text.name: before for text in asked})
        rows += _rows("again", sampling, asked, {text.name: [greedy[text.name]] for text in asked})
        agents = [text for text in own if text.name not in six | others]
        rows += _rows("agents", sampling, agents)[:1]
    if options.files:
        rows += _rows("files", "", list(_versions()))[:1]
    report("Guesses at a real model's answers", rows, NOTES)
    rates = _rates(texts)
    report("Right guesses, by the length of the passage that occurred before", rates)
    return rows + rates


def _rows(
    case: str, sampling: str, texts: Sequence[Text], before: Mapping[str, Sequence[Text]] | None = None
) -> list[Row]:
    """A row for all texts, and one for each. `before`: by the name of a text, those of the same client before it."""
    rows: list[Row] = []
    for text in texts:
        memory = PassageMemory()
        for earlier in (before or {}).get(text.name, ()):
            _follow(memory, earlier)
        begin = time.process_time()
        counts = _follow(memory, text)
        us = 1e6 * (time.process_time() - begin) / len(text.answer)
        tau = len(text.answer) / (len(text.answer) - counts["right"] or 1)
        rows.append(
            {"case": case, "sampling": sampling, "text": text.name, "tokens": len(text.answer)}
            | {"right": counts["right"], "wrong": counts["wrong"], "tau": round(tau, 2)}
            | {"speed": round(tau / (1 + (tau - 1) / STAGES), 3), "us": round(us)}
        )
    sums = {name: sum(row[name] for row in rows) for name in ("tokens", "right", "wrong")}
    middle = {name: round(median([row[name] for row in rows]), 3) for name in ("tau", "speed", "us")}
    target = at_least(middle["speed"], TARGET if case == "first" else None)
    return [{"case": case, "sampling": sampling, "text": f"all {len(rows)}", **sums, **middle, **target}, *rows]


def _follow(memory: PassageMemory, text: Text) -> Counter[str]:
    """Count the tokens of an answer that were guessed, and guesses that were wrong."""
    tokens, counts = list(text.prompt), Counter[str]()
    guesser = Guesser(text.prompt, memory=memory, owner=OWNER)
    for token in text.answer:
        guess = guesser.after(tokens)
        counts["right"] += guess == token
        counts["wrong"] += guess not in (token, None)
        tokens.append(token)
    return counts


def _rates(texts: Sequence[Text]) -> list[Row]:
    """How many guesses after each length of passage are right, over all answers, each of a client of its own."""
    made, right = Counter[int](), Counter[int]()
    for text in texts:
        memory, tokens = PassageMemory(), text.prompt + text.answer
        for place in range(1, len(tokens)):
            passages = [tokens[place - length : place] for length in LENGTHS if length <= place]
            guesses = [memory.put(OWNER, passage, tokens[place]) for passage in passages]
            known = [(length, guess) for length, guess in zip(LENGTHS, guesses, strict=False) if guess is not None]
            if known and place >= len(text.prompt):
                length, guess = known[-1]
                made[length] += 1
                right[length] += guess == tokens[place]
    return [
        {"length": each, "guesses": made[each], "right %": round(100 * right[each] / made[each])} for each in LENGTHS
    ]


# --- texts --------------------------------------------------------------------------------------------------------------


def _answered() -> Iterator[Text]:
    """The model's answers to all tasks."""
    model, tokenizer = mlx_lm.load(str(real_model.real_model(quantized=False)))[:2]
    tasks = tomllib.loads(TASKS.read_text())
    questions = {task["name"]: task["content"] for task in (*tasks["task"], *tasks["before"])}
    for sampling, options in SAMPLERS.items():
        mx.random.seed(3)
        sampler = make_sampler(**options)
        chats = {name: [{"role": "user", "content": question}] for name, question in questions.items()}
        yield from _answers(model, tokenizer, chats, sampling, sampler)
        system = {"role": "system", "content": tasks["agents"]["system"]}
        agents = {chat["name"]: (chat["turns"], [system]) for chat in tasks["agents"]["chats"]}
        for turn in range(len(tasks["agents"]["chats"][0]["turns"])):
            for turns, chat in agents.values():
                chat.append({"role": "user", "content": turns[turn]})
            chats = {f"{name}, turn {turn + 1}": chat for name, (_, chat) in agents.items()}
            texts = list(_answers(model, tokenizer, chats, sampling, sampler))
            for text, chat in zip(texts, chats.values(), strict=True):
                chat.append({"role": "assistant", "content": tokenizer.decode(text.answer, skip_special_tokens=True)})
            yield from texts


def _answers(model: Any, tokenizer: Any, chats: dict[str, Any], sampling: str, sampler: Any) -> Iterator[Text]:
    generating: Any = importlib.import_module("mlx_lm.generate")  # mlx_lm has a function of this name
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats.values()]
    stops = [[token] for token in tokenizer.eos_token_ids]
    generator = generating.BatchGenerator(model, stop_tokens=stops, sampler=sampler)
    answers: dict[int, list[int]] = {number: [] for number in generator.insert(prompts, [MOST_TOKENS] * len(prompts))}
    while responses := generator.next_generated():
        for response in responses:
            answers[response.uid].append(response.token)
    print(f"{len(prompts)} answers, {sampling}: {sum(map(len, answers.values()))} tokens", flush=True)
    for name, prompt, answer in zip(chats, prompts, answers.values(), strict=True):
        yield Text(name, sampling, prompt, answer)


def _versions() -> Iterator[Text]:
    """The versions of some files, each after the other files and the versions before."""
    folder = real_model.real_model(quantized=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    paths = [f"node/{name}.py" for name in FILES]
    for path in paths:
        others = "\n".join(_git("show", f"HEAD:{other}") for other in paths if other != path)
        commits = _git("log", f"-{VERSIONS}", "--format=%h", "--", path).split()[::-1]
        first, *later = (_git("show", f"{commit}:{path}") for commit in commits)
        prompt: list[int] = tokenizer.encode(f"{others}\n{first}\nChange it.\n").ids
        for number, version in enumerate(later):
            answer: list[int] = tokenizer.encode(version).ids
            yield Text(f"{path}, change {number + 1}", "", list(prompt), answer)
            prompt += [*answer, *tokenizer.encode("\nChange it again.\n").ids]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(figures.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
