"""Cline's command line: a question, with its tools."""

import os
import tempfile
from pathlib import Path

from agents import MODEL, all_answered, recording, run_agent
from harness import run

PROGRAM = Path(os.environ["CLIENT_ENVIRONMENT"]) / "node_modules" / ".bin" / "cline"


def answers() -> None:
    with recording() as recorder, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        login = ["auth", "--provider", "openai", "--apikey", "any", "--modelid", MODEL, "--baseurl", recorder.url]
        run_agent([str(PROGRAM), *login], folder)
        # In its own process: it would leave a daemon behind.
        run_agent([str(PROGRAM), "--json", "What is in notes.txt?"], folder, CLINE_SESSION_BACKEND_MODE="local")
    all_answered(recorder.exchanges)
    chat = recorder.of("/v1/chat/completions")[0]
    assert chat.sent["stream"]
    assert chat.sent["tools"]


if __name__ == "__main__":
    run(answers)
