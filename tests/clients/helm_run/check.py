"""HELM's program, `helm-run`: a scenario of its own that needs no download, from its questions to its statistics."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from harness import MODEL, URL, run

PROGRAM = Path(os.environ["CLIENT_ENVIRONMENT"]) / "bin" / "helm-run"
QUESTIONS = 10
NAME = f"pippin/{MODEL}"
DEPLOYMENTS = {
    "model_deployments": [
        {
            "name": NAME,
            "model_name": NAME,
            "tokenizer_name": "simple/tokenizer1",
            "max_sequence_length": 16384,
            "client_spec": {
                "class_name": "helm.clients.openai_client.OpenAIClient",
                "args": {"base_url": URL, "api_key": "any"},
            },
        }
    ]
}
MODELS = {
    "models": [
        {
            "name": NAME,
            "display_name": MODEL,
            "description": "built in",
            "creator_organization_name": "Pippin",
            "access": "open",
            "tags": ["TEXT_MODEL_TAG"],
        }
    ]
}


def scenario() -> None:
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "prod_env"
        settings.mkdir()
        # JSON is YAML.
        (settings / "model_deployments.yaml").write_text(json.dumps(DEPLOYMENTS))
        (settings / "model_metadata.yaml").write_text(json.dumps(MODELS))
        entry = f"simple_mcqa:model={NAME}"
        command = [
            str(PROGRAM),
            "--run-entries",
            entry,
            "--suite",
            "s",
            "--max-eval-instances",
            str(QUESTIONS),
            "-n",
            "4",
        ]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-1500:]
        (made,) = Path(directory).glob("benchmark_output/runs/s/*/scenario_state.json")
        asked = json.loads(made.read_text())["request_states"]
    assert len(asked) == QUESTIONS
    for each in asked:
        assert each["result"]["success"], each["result"]
        assert each["result"]["completions"][0]["text"]


if __name__ == "__main__":
    run(scenario)
