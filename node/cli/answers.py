"""Answers of a model in the terminal: streamed as they arrive, and `cluster run`."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from node.cli.client import Api, Json, StatusFailed
from node.cli.terminal import dim, progress, without_controls
from node.core.generation import CONVERSATION

CHAT = "/v1/chat/completions"


class Shown(NamedTuple):
    """An answer that was shown."""

    text: str = ""
    finish: str = ""
    """Why it ended, as in the API; empty if Ctrl-C stopped it."""
    stats: str = ""
    """How many tokens it had, and how quick they were; empty if it has not ended."""


def show(api: Api, body: Json) -> Shown:
    """Print an answer as it arrives, until its end or Ctrl-C, which ends the request as well. What it waits for before it
    begins is shown as progress.

    Raises NoNode, StatusFailed, RequestRefused.
    """
    text, finish, stats, write, wait = "", "", "", _writer(), progress()
    is_waiting = has_begun = False
    asked_at, first_at = time.monotonic(), 0.0
    more = {"stream": True, "stream_options": {"include_usage": True}, "sampling_defaults": CONVERSATION}
    try:
        with contextlib.suppress(KeyboardInterrupt), contextlib.closing(api.events(CHAT, body | more)) as events:
            for event in events:
                if isinstance(event, str):
                    if event != "keep-alive" and not has_begun:
                        wait(event)
                        is_waiting = True
                    continue
                if is_waiting:
                    wait("")
                is_waiting, has_begun = False, True
                for choice in event["choices"]:
                    delta = choice["delta"]
                    write(delta.get("reasoning_content") or "", True)
                    write(delta.get("content") or "", False)
                    text += delta.get("content") or ""
                    finish = choice["finish_reason"] or finish
                if text and not first_at:
                    first_at = time.monotonic()
                if usage := event.get("usage"):
                    now = time.monotonic()
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
                    stats = (
                        f"prompt: {usage['prompt_tokens']} tokens, {cached} of them known; "
                        f"answer: {usage['completion_tokens']} tokens; "
                        f"first text after {(first_at or now) - asked_at:.2f} s, end after {now - asked_at:.2f} s"
                    )
    finally:
        if has_begun:  # an error stands on a line of its own
            print(flush=True)
    if finish == "length":
        print(dim("The answer has reached its maximum length.", sys.stderr), file=sys.stderr)
    return Shown(text, finish, stats)


def _writer() -> Callable[[str, bool], None]:
    """Print pieces of an answer: text to stdout, reasoning to a terminal only, dimmed and apart from the text."""
    was_reasoning = False

    def write(piece: str, is_reasoning: bool) -> None:
        nonlocal was_reasoning
        piece = without_controls(piece)
        if not piece or (is_reasoning and not sys.stdout.isatty()):
            return
        between = "\n\n" if was_reasoning and not is_reasoning else ""
        was_reasoning = is_reasoning
        print(between + (dim(piece, sys.stdout) if is_reasoning else piece), end="", flush=True)

    return write


def run(api: Api, body: Json, *, as_json: bool, verbose: bool = False) -> bool:
    """`cluster run`: one answer, printed as it arrives, or as JSON when it is whole. False if Ctrl-C stopped it.

    `verbose`: its numbers follow on stderr. Raises NoNode, StatusFailed, RequestRefused.
    """
    if as_json:
        # Nothing arrives before its end.
        answer = api.ask("POST", CHAT, body | {"sampling_defaults": CONVERSATION}, timeout=3600)
        print(json.dumps(answer, indent=2))
        return True
    shown = show(api, body)
    if verbose and shown.stats:
        print(dim(shown.stats, sys.stderr), file=sys.stderr)
    return bool(shown.finish)


def whole_prompt(words: Sequence[str]) -> str:
    """The prompt from the arguments, after what comes by a pipe: `cat letter | cluster run MODEL "Make it shorter"`.

    Raises StatusFailed if there is neither, or if the pipe has no text.
    """
    try:
        piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise StatusFailed("What comes by the pipe is no text in UTF-8.") from error
    prompt = "\n\n".join(filter(None, (piped, " ".join(words).strip())))
    if not prompt:
        raise StatusFailed('There is no prompt. Write it like: cluster run MODEL "Why is the sky blue?"')
    return prompt


def default_model(api: Api, prompt: int = 0) -> str:
    """The model to talk to if none is named: one that is loaded, if possible with a context for so long a prompt, else one
    that is loading, else the only one here.

    Raises StatusFailed if there is no such model, with the names of those that there are.
    """
    placed = api.status()["models"]
    ready, loading = ([model for model in placed if model["state"] == state] for state in ("ready", "loading"))
    roomy = [model for model in ready if model["context"] > prompt]
    if model := next(iter([*roomy, *ready, *loading]), None):
        return str(model["id"])
    here = [str(model["id"]) for model in api.ask("GET", "/v1/models")["data"]]
    if len(here) == 1:
        return here[0]
    there = f"There are {', '.join(here)}." if here else "No node has one: fetch one with `cluster pull`."
    raise StatusFailed(f"No model is loaded. Name one. {there}")
