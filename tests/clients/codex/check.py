"""codex: `codex exec` through the Responses API, with its tools, of which the model is made to call one."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from agents import MODEL, Exchange, Recorder, all_answered, end_soon, recording, run_agent
from harness import run

PROGRAM = Path(os.environ["CLIENT_ENVIRONMENT"]) / "node_modules" / ".bin" / "codex"
NAMESPACE, FUNCTION = "multi_agent_v1", "close_agent"
"""A tool that does no harm, whatever its arguments are."""


def _codex(recorder: Recorder) -> list[Exchange]:
    provider = f'{{name="Pippin", base_url="{recorder.url}", wire_api="responses"}}'
    options = [
        "--skip-git-repo-check",
        "-m",
        MODEL,
        "-c",
        "model_provider=pippin",
        "-c",
        f"model_providers.pippin={provider}",
    ]
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        home = folder / "codex"
        home.mkdir()
        run_agent([str(PROGRAM), "exec", *options, "What is in notes.txt?"], folder, CODEX_HOME=str(home))
    all_answered(recorder.of("/v1/responses"))
    return recorder.of("/v1/responses")


def answers() -> None:
    with recording() as recorder:
        (exchange,) = _codex(recorder)
    assert exchange.sent["stream"]
    assert exchange.events[-1]["type"] == "response.completed"


def calls_a_tool() -> None:
    def call_once(body: dict[str, Any]) -> None:
        if body["input"][-1]["type"] != "function_call_output":
            body["tool_choice"] = {"type": "function", "name": f"{NAMESPACE}__{FUNCTION}"}
        else:
            end_soon(body)

    with recording(call_once) as recorder:
        first, second, *_ = _codex(recorder)
    (call,) = first.events[-1]["response"]["output"]
    assert (call["namespace"], call["name"]) == (NAMESPACE, FUNCTION)
    json.loads(call["arguments"])
    *_, sent, result = second.sent["input"]
    assert (sent["type"], sent["namespace"], sent["name"]) == ("function_call", NAMESPACE, FUNCTION)
    assert (result["type"], result["call_id"]) == ("function_call_output", call["call_id"])
    usage = second.events[-1]["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] / 2


if __name__ == "__main__":
    run(answers, calls_a_tool)
