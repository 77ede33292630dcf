"""Simon Willison's `llm` command."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import HELLO, MODEL, URL, run

MODELS = f"""
- model_id: pippin
  model_name: {MODEL}
  api_base: {URL}
  supports_schema: true
  supports_tools: true
- model_id: pippin-legacy
  model_name: {MODEL}
  api_base: {URL}
  completion: true
"""


def llm(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "extra-openai-models.yaml").write_text(MODELS)
        environment = {**os.environ, "LLM_USER_PATH": directory, "LLM_OPENAI_KEY": "any"}
        command = [str(Path(sys.executable).parent / "llm"), "-o", "temperature", "0", "--no-log", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain_and_streamed() -> None:
    assert llm("-m", "pippin", "Hello") == HELLO + "\n"
    assert llm("-m", "pippin", "--no-stream", "Hello") == HELLO + "\n"


def completions() -> None:
    arguments = ("-m", "pippin-legacy", "-o", "max_tokens", "8", "1, 2, 3,")
    assert llm(*arguments) == llm(*arguments, "--no-stream") != "\n"


def schema() -> None:
    for more in ((), ("--no-stream",)):
        dog = json.loads(
            llm("-m", "pippin", "-o", "max_tokens", "400", "--schema", "good bool, age int", "A dog", *more)
        )
        assert set(dog) == {"good", "age"}
        assert type(dog["good"]) is bool


def tools() -> None:
    """The request must be answered; the model's use of the tool is not checked."""
    assert llm("-m", "pippin", "-o", "max_tokens", "60", "-T", "llm_version", "What is the capital of France?").strip()


if __name__ == "__main__":
    run(plain_and_streamed, completions, schema, tools)
