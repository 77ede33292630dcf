"""LibreChat's agents, the part of it that asks models: an answer, and a call of a tool with its result, by its three APIs."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import MODEL, run

ASK = Path(os.environ["CLIENT_ENVIRONMENT"]) / "ask.mjs"
RUN_S = 120.0


def asked(kind: str, text: str) -> Any:
    """What the agent answers, and what its tool was asked."""
    command = ["node", str(ASK), kind, MODEL, text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert not done.returncode, done.stderr[-500:]
    return json.loads(done.stdout.splitlines()[-1])


def by(kind: str) -> Callable[[], None]:
    def check() -> None:
        greeting = asked(kind, "Hello")
        assert [part["type"] for part in greeting["content"]] == ["text"]
        assert greeting["content"][0]["text"].startswith("Hello!")
        assert greeting["asked"] == []
        weather = asked(kind, "What is the weather in Paris?")
        assert weather["asked"] == [{"location": "Paris"}]
        (called,) = [part["tool_call"] for part in weather["content"] if part["type"] == "tool_call"]
        assert (called["name"], called["output"]) == ("get_weather", "It is sunny.")
        assert weather["content"][-1]["text"]

    check.__name__ = kind
    return check


if __name__ == "__main__":
    run(by("chat"), by("responses"), by("messages"))
