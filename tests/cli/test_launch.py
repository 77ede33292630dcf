"""`cluster launch`, with programs that print how they were started instead of coding agents."""

import json
import os
import shlex
import subprocess
import sys
import tomllib

import pytest

from node.cli.__main__ import main
from node.cli.client import Api
from node.cli.launch import PROGRAMS, Model, launch
from tests.cli.test_models import GOLDEN

QWEN = "mlx-community/Qwen3-32B-4bit"
FOUND = {"id": QWEN, "object": "model", "max_model_len": 65536}
MODELS = json.loads((GOLDEN / "models.json").read_text())
NOT_FOUND = (404, json.dumps({"error": {"message": "No.", "code": "model_not_found"}}).encode())
KEYS = {
    "claude": "ANTHROPIC_AUTH_TOKEN",
    "codex": "PIPPIN_API_KEY",
    "opencode": "OPENCODE_CONFIG_CONTENT",
    "aider": "AIDER_OPENAI_API_KEY",
}
"""The variable with the API key of each program."""
FAKE = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit(7)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home of a user on whose PATH all programs are."""
    for name in PROGRAMS:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(FAKE)
        (tmp_path / "bin" / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PIPPIN_API_KEY", raising=False)
    return tmp_path


@pytest.fixture
def launched(node, ready, home):
    """Launches a program: the arguments and the environment that it gets, and what was said before."""
    node.answers = [ready, FOUND]

    def run(*words, **environment):
        command = [sys.executable, "-m", "node.cli", "launch", "--api", node.url, *words]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
        assert done.returncode == 7, done.stderr
        said = json.loads(done.stdout)
        return said["arguments"], said["environment"], done.stderr

    return run


def test_claude(node, launched):
    arguments, environment, said = launched("claude", "--", "-p", "two words", ANTHROPIC_API_KEY="sk-ant-secret")
    assert arguments[0] == "--settings"
    assert arguments[2:] == ["-p", "two words"]
    wins = json.loads(arguments[1])["env"]
    assert wins == {name: environment[name] for name in wins}
    assert {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL", "ANTHROPIC_API_KEY"} <= {*wins}
    assert environment["ANTHROPIC_BASE_URL"] == node.url
    assert environment["ANTHROPIC_AUTH_TOKEN"] == "any"
    assert {environment[f"ANTHROPIC_{which}MODEL"] for which in ("", "DEFAULT_HAIKU_", "DEFAULT_OPUS_")} == {QWEN}
    assert environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "65536"
    assert environment["ANTHROPIC_API_KEY"] == "", "Anthropic's key is not for a node"
    assert said == f"claude uses {QWEN} (context 65,536 tokens) of {node.url}\n"


def test_codex(node, launched):
    arguments, environment, _ = launched("codex", "--", "exec", "hi")
    assert arguments[-2:] == ["exec", "hi"]
    assert set(arguments[:-2:2]) == {"-c"}
    provider = {"name": "Pippin", "base_url": f"{node.url}/v1", "wire_api": "responses", "env_key": "PIPPIN_API_KEY"}
    assert tomllib.loads("\n".join(arguments[1:-2:2])) == {
        "model": QWEN,
        "model_provider": "pippin",
        "model_providers": {"pippin": provider},
        "web_search": "disabled",
        "model_context_window": 65536,
    }
    assert environment["PIPPIN_API_KEY"] == "any"


def test_opencode(node, launched):
    arguments, environment, _ = launched("opencode")
    settings = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
    assert arguments == []
    assert settings["model"] == settings["small_model"] == f"pippin/{QWEN}"
    provider = settings["provider"]["pippin"]
    assert provider["options"] == {"baseURL": f"{node.url}/v1", "apiKey": "any"}
    assert provider["models"][QWEN]["limit"] == {"context": 65536, "output": 8192}


def test_aider(node, launched, home):
    arguments, environment, _ = launched("aider", "--", "file.py")
    given = dict(zip(arguments[:-1:2], arguments[1::2], strict=True))
    assert arguments[-1] == "file.py"
    assert given["--model"] == f"openai/{QWEN}"
    assert given["--openai-api-base"] == f"{node.url}/v1"
    assert environment["AIDER_OPENAI_API_KEY"] == "any"
    limits = json.loads((home / ".pippin/launch/aider.json").read_text())
    assert given["--model-metadata-file"] == str(home / ".pippin/launch/aider.json")
    assert limits[f"openai/{QWEN}"]["max_input_tokens"] == 65536


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_key_is_in_the_environment_and_never_among_the_arguments(node, launched, program):
    arguments, environment, said = launched(program, PIPPIN_API_KEY="sk-ours")
    assert node.keys == ["Bearer sk-ours"] * 2
    assert "sk-ours" in environment[KEYS[program]]
    assert "sk-ours" not in said + "".join(arguments)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_does_not_know_the_context_is_told_none(node, ready, launched, program):
    node.answers = [ready, {"id": QWEN}]
    arguments, environment, said = launched(program)
    assert not {"65536", "model_context_window=0", "--model-metadata-file"} & {*arguments, *environment.values()}
    assert "limit" not in environment.get("OPENCODE_CONFIG_CONTENT", "")
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in environment
    assert "(context unknown)" in said


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_but_our_own_folder_is_written(launched, home, program):
    launched(program)
    assert {file.name for file in home.iterdir()} <= {"bin", ".pippin"}


def test_a_context_that_is_too_short_is_told(node, ready, launched):
    node.answers = [ready, FOUND | {"max_model_len": 2048}]
    *_, said = launched("claude")
    assert "cluster: the first prompt of claude has some 20,000 tokens" in said


@pytest.mark.parametrize(("program", "model"), [("claude", "org/roomy"), ("aider", "org/first")])
def test_a_loaded_model_with_room_for_the_prompt_is_preferred(node, ready, home, program, model):
    first = ready["models"][0]
    ready["models"] = [first | {"id": "org/first", "context": 8192}, first | {"id": "org/roomy", "context": 65536}]
    node.answers = [ready, FOUND]
    assert main(["launch", program, "--config", "--api", node.url]) == 0
    assert node.paths[1] == f"/v1/models/{model.replace('/', '%2F')}"


def test_the_node_is_not_asked_through_a_proxy(launched):
    _, environment, _ = launched("aider", NO_PROXY="example.org", HTTP_PROXY="http://proxy:1")
    assert environment["NO_PROXY"] == "example.org,127.0.0.1"


# --- which model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "authority", "passed", "warned"),
    [("https", "/ca.pem", "/ca.pem", False), ("https", "", None, True), ("http", "/ca.pem", None, False)],
)
def test_programs_are_told_whom_to_trust(monkeypatch, home, capsys, scheme, authority, passed, warned):
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    model = Model(Api(scheme, "mini.local", 52415, fingerprint="ab" if scheme == "https" else ""), QWEN, 0)
    launch("claude", model, (), prints=True)
    said = capsys.readouterr()
    assert (f"NODE_EXTRA_CA_CERTS={passed}" in said.out) == (passed is not None)
    assert ("knows no --tls-fingerprint" in said.err) == warned
    assert f"ANTHROPIC_BASE_URL={scheme}://mini.local:52415" in said.out


def test_a_named_model(node, ready, home, capsys):
    node.answers = [ready, FOUND]
    assert main(["launch", "claude", "--model", "qwen3", "--config", "--api", node.url]) == 0
    assert node.paths == ["/cluster/status", "/v1/models/mlx-community%2FQwen3-32B-4bit"]
    assert f"export ANTHROPIC_MODEL={QWEN}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen-32b", "There is no model 'qwen-32b' here. Did you mean qwen3-32b?"),
        ("qwen3-8b", "No node has qwen3-8b: fetch it with `cluster pull qwen3-8b`."),
        ("xyz", f"There is no model 'xyz' here. There are {', '.join(m['id'] for m in MODELS['models'])}."),
    ],
)
def test_a_model_that_there_is_not(node, ready, home, capsys, name, said):
    node.answers = [ready, NOT_FOUND, NOT_FOUND, MODELS]
    assert main(["launch", "claude", "--model", name, "--api", node.url]) == 1
    assert capsys.readouterr().err == f"cluster: {said}\n"


def test_no_model_is_loaded(node, ready, home, capsys):
    ready["models"] = []
    node.answers = [ready, {"data": []}]
    assert main(["launch", "claude", "--api", node.url]) == 1
    assert "No model is loaded." in capsys.readouterr().err


def test_no_node(home, capsys):
    assert main(["launch", "claude", "--api", "127.0.0.1:1"]) == 3
    assert "No node answers at http://127.0.0.1:1" in capsys.readouterr().err


# --- without the program ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_not_installed(node, ready, home, capsys, program):
    (home / "bin" / program).unlink()
    node.answers = [ready, FOUND]
    assert main(["launch", program, "--api", node.url]) == 1
    err = capsys.readouterr().err
    assert err == f"cluster: {program} is not on the PATH. Install it: {PROGRAMS[program].install}\n"


def test_a_program_that_is_installed_by_half(node, ready, home, capsys):
    (home / "bin" / "claude").write_text("echo Run install.cjs first.\n")
    node.answers = [ready, FOUND]
    assert main(["launch", "claude", "--api", node.url]) == 1
    told = f"{home / 'bin' / 'claude'} can't be started (Exec format error). Install it again: {PROGRAMS['claude'].install}"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_settings_can_be_pasted_into_a_shell(node, ready, launched, home, capsys, program):
    assert main(["launch", program, "--config", "--api", node.url, "--", "two words"]) == 0
    script = capsys.readouterr().out
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    node.answers = [ready, FOUND]
    arguments, environment, _ = launched(program, "--", "two words")
    pasted = json.loads(done.stdout)
    assert pasted["arguments"] == arguments
    names = [shlex.split(line)[1].partition("=")[0] for line in script.splitlines() if line.startswith("export ")]
    assert names
    assert {name: pasted["environment"][name] for name in names} == {name: environment[name] for name in names}


def test_settings_are_printed_where_the_program_is_not(node, ready, home, capsys):
    (home / "bin" / "claude").unlink()
    node.answers = [ready, FOUND]
    assert main(["launch", "claude", "--config", "--api", node.url]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("claude --settings ")


def test_a_program_that_nobody_knows(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", "claud"])
    assert "'claud' (did you mean claude?)" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(node, ready, home, capsys):
    (home / ".pippin").write_text("no folder")
    node.answers = [ready, FOUND]
    assert main(["launch", "aider", "--api", node.url]) == 1
    assert "can't be written" in capsys.readouterr().err
