"""Continue's command line, `cn`: a question, with its tools."""

import os
import tempfile
from pathlib import Path

from agents import MODEL, all_answered, recording, run_agent
from harness import run

PROGRAM = Path(os.environ["CLIENT_ENVIRONMENT"]) / "node_modules" / ".bin" / "cn"
SETTINGS = """
name: local
version: 0.0.1
schema: v1
models:
  - name: pippin
    provider: openai
    model: {model}
    apiBase: {url}
    apiKey: any
    capabilities: [tool_use]
    defaultCompletionOptions: {{contextLength: 40960, maxTokens: 64}}
    roles: [chat, edit, apply]
"""


def answers() -> None:
    with recording() as recorder, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "config.yaml").write_text(SETTINGS.format(model=MODEL, url=recorder.url))
        command = [str(PROGRAM), "-p", "--config", "config.yaml", "What is in notes.txt?"]
        run_agent(command, folder, CONTINUE_TELEMETRY_ENABLED="0")
    all_answered(recorder.exchanges)
    chat = recorder.of("/v1/chat/completions")[0]
    assert chat.sent["stream"]
    assert chat.sent["tools"]


if __name__ == "__main__":
    run(answers)
