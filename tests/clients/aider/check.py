"""aider: an edit of a file with one message, streamed and not. The model's edits are noise; the file must survive them."""

import sys
import tempfile
from pathlib import Path

from agents import MODEL, Recorder, all_answered, recording, run_agent
from harness import run

TEXT = "def double(number):\n    return 2 * number\n"


def _aider(recorder: Recorder, *options: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "double.py").write_text(TEXT)
        (folder / "settings.yml").write_text(
            f"- name: openai/{MODEL}\n  edit_format: diff\n  cache_control: true\n"
            "  extra_params: {max_tokens: 48, temperature: 0}\n"
        )
        command = [str(Path(sys.executable).with_name("aider")), "--model", f"openai/{MODEL}"]
        command += [
            "--openai-api-base",
            recorder.url,
            "--openai-api-key",
            "any",
            "--model-settings-file",
            "settings.yml",
        ]
        command += [
            "--yes-always",
            "--no-git",
            "--no-check-update",
            "--no-show-model-warnings",
            "--no-show-release-notes",
        ]
        command += ["--analytics-disable", "--map-tokens", "0", "--message", "Rename double to twice.", *options]
        text = run_agent([*command, "double.py"], folder, LITELLM_LOCAL_MODEL_COST_MAP="True")
        assert (folder / "double.py").read_text()
        return text


def plain() -> None:
    with recording() as recorder:
        _aider(recorder, "--no-stream")
    all_answered(recorder.exchanges)
    assert not any(exchange.sent.get("stream") for exchange in recorder.of("/v1/chat/completions"))


def streamed() -> None:
    with recording() as recorder:
        _aider(recorder, "--stream", "--cache-prompts")
    all_answered(recorder.exchanges)
    chats = recorder.of("/v1/chat/completions")
    assert all(exchange.sent["stream"] for exchange in chats)
    assert all(exchange.answer.endswith("data: [DONE]\n\n") for exchange in chats)


if __name__ == "__main__":
    run(plain, streamed)
