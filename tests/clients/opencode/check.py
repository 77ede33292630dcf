"""opencode: `opencode run` with its tools, of which the model is made to call one."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from agents import MODEL, Exchange, Recorder, all_answered, end_soon, recording, run_agent
from harness import run

PROGRAM = max(Path(os.environ["CLIENT_ENVIRONMENT"]).glob("node_modules/opencode-*/bin/opencode"))
"""The last one is for any processor. The package's own `opencode` needs a script that runs after the installation."""
HARMLESS = "read"
"""A tool that does no harm, whatever its arguments are."""


def _opencode(recorder: Recorder) -> str:
    model = {"name": MODEL, "limit": {"context": 40960, "output": 64}}
    options = {"baseURL": recorder.url, "apiKey": "any"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Pippin", "options": options, "models": {MODEL: model}}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        settings: dict[str, Any] = {"provider": {"pippin": provider}, "model": f"pippin/{MODEL}", "share": "disabled"}
        settings |= {"autoupdate": False, "permission": {"external_directory": "deny"}}
        (folder / "opencode.json").write_text(json.dumps(settings))
        (folder / "notes.txt").write_text("Nothing yet.\n")
        quiet = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")
        return run_agent(
            [str(PROGRAM), "run", "What is in notes.txt?"],
            folder,
            **{f"OPENCODE_DISABLE_{name}": "1" for name in quiet},
        )


def _with_tools(recorder: Recorder) -> list[Exchange]:
    return [each for each in recorder.of("/v1/chat/completions") if each.sent.get("tools")]


def answers() -> None:
    with recording() as recorder:
        _opencode(recorder)
    all_answered(recorder.exchanges)
    assert _with_tools(recorder)[0].sent["stream"]


def calls_a_tool() -> None:
    def call_once(body: dict[str, Any]) -> None:
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            body["tool_choice"] = {"type": "function", "function": {"name": HARMLESS}}
            body["max_tokens"] = 2000
        else:
            end_soon(body)

    with recording(call_once) as recorder:
        _opencode(recorder)
    all_answered(recorder.exchanges)
    first, second, *_ = _with_tools(recorder)
    assert first.events[-1]["choices"] == [] or first.events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    call, result = second.sent["messages"][-2:]
    assert call["tool_calls"][0]["function"]["name"] == HARMLESS
    assert result["role"] == "tool"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    usage = next(event["usage"] for event in reversed(second.events) if event.get("usage"))
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 2


if __name__ == "__main__":
    run(answers, calls_a_tool)
