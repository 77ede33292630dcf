import json
import re
import socket
import subprocess
import sys

import pytest

from node import __version__
from node.cli.__main__ import main
from node.cli.client import parse_api
from node.cli.commands import watch


@pytest.fixture
def nobody():
    """An address on which nothing listens, reserved while the test runs."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


@pytest.mark.parametrize(("state", "code"), [("ready", 0), ("idle", 0), ("loading", 4), ("degraded", 4)])
def test_status_exit_codes(node, status, capsys, state, code):
    node.answers = [status | {"state": state}]
    assert main(["status", "--api", node.url]) == code
    out, err = capsys.readouterr()
    assert out.startswith(f"cluster home   {state.upper()}   head mini-2 (term 7)")
    assert err == ""


def test_status_json_is_the_nodes_own(node, status, capsys):
    node.answers = [status]
    assert main(["status", "--json", "--api", f"{node.url}/v1"]) == 4
    assert json.loads(capsys.readouterr().out) == status


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_node_here(nobody, capsys, flags):
    assert main(["status", "--api", nobody, *flags]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"cluster: No node answers at {nobody}")
    assert "Start one with `node`" in err


def test_another_server_is_an_error(node, capsys):
    node.answers = [(404, b"nothing")]
    assert main(["status", "--api", node.url]) == 1
    assert "is no Pippin node" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["bogus"],
        ["status", "--api", "ftp://x"],
        ["status", "--nodes", "2"],
        ["wait", "--nodes", "many"],
        ["wait", "--timeout", "nan"],
        ["wait", "--timeout", "-1"],
    ],
)
def test_usage(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"cluster( \w+)?: .*\. See cluster( \w+)? --help\n", err), "one line"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["status", "--jsn"], "cluster status: unknown argument: --jsn (did you mean --json?)"),
        (["status", "--js"], "cluster status: unknown argument: --js (did you mean --json?)"),
        (["--json", "status"], "cluster: unknown argument: --json (it stands behind the command)"),
        (["drain", "mini-1", "mini-2"], "cluster drain: unknown argument: mini-2."),
        (["load"], "cluster load: the following arguments are required: MODEL."),
        (["load", "x", "--stages"], "cluster load: Option '--stages' requires an argument."),
        (["secret"], "cluster secret: the following arguments are required: COMMAND."),
        (["completion"], "cluster completion: the following arguments are required: SHELL."),
    ],
)
def test_near_misses(argv, said, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("statu", "(did you mean status?)"),
        ("complet", "(did you mean completion?)"),
        ("xyz", "(choose from chat, run, "),
    ],
)
def test_a_command_that_there_is_not(command, said, capsys):
    """The command that shells call is told to nobody."""
    with pytest.raises(SystemExit):
        main([command])
    err = capsys.readouterr().err
    assert f"invalid choice: '{command}' {said}" in err
    assert "complete" not in err


def test_wait_until_ready(node, status, capsys):
    loaded = status | {"state": "ready", "models": [status["models"][0] | {"state": "ready"}]}
    node.answers = [status, loaded]
    assert main(["wait", "--ready", "--nodes", "3", "--timeout", "20", "--api", node.url]) == 0
    out, err = capsys.readouterr()
    assert out == "ready\n"
    assert err.startswith("waiting: mini-3 has fetched 58 % of layers 44-63 of mlx-community/Qwen3-32B-4bit")


def test_wait_in_vain_says_what_is_missing(node, ready, capsys):
    node.answers = [ready]
    assert main(["wait", "--ready", "--nodes", "9", "--timeout", "0", "--api", node.url]) == 4
    assert capsys.readouterr().err.endswith("cluster: not ready after 0 s: 3 of 9 nodes are here.\n")


def test_wait_for_nobody(nobody, capsys):
    assert main(["wait", "--ready", "--timeout", "0", "--api", nobody]) == 4
    assert "No node answers" in capsys.readouterr().err


# --- watch ----------------------------------------------------------------------------------------------------------


class Rounds:
    """Replaces the pause between redraws; raises Ctrl-C in the last one."""

    def __init__(self, count):
        self.left = count

    def __call__(self, seconds):
        assert seconds == 1
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_watch_redraws_until_ctrl_c(node, status, capsys):
    node.answers = [status, status | {"state": "ready"}]
    watch(parse_api(node.url), pause=Rounds(2))
    frames = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cluster home")]
    assert [frame.split()[2] for frame in frames] == ["LOADING", "READY"]


def test_watch_outlives_the_node(node, nobody, ready, capsys):
    node.answers = [ready, (503, b"")]
    watch(parse_api(node.url), as_json=True, pause=Rounds(2))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ready
    assert list(lines[1]) == ["error"]
    watch(parse_api(nobody), pause=Rounds(1))
    assert "No node answers" in capsys.readouterr().out


# --- the process ----------------------------------------------------------------------------------------------------

HEAVY = {
    "mlx",
    "mlx_lm",
    "aiohttp",
    "grpc",
    "pydantic",
    "psutil",
    "zeroconf",
    "asyncio",
    "numpy",
    "subprocess",
    "readline",
}


def test_the_status_imports_nothing_heavy(node, ready):
    """It is run in loops and prompts: what a process imports is most of its time."""
    node.answers = [ready]
    code = f"""import sys
from node.cli.__main__ import main
assert main(["status", "--api", "{node.url}"]) == 0
print(*{{name.partition(".")[0] for name in sys.modules}}, file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cluster home   READY")
    assert not HEAVY & set(done.stderr.split())


def test_a_reader_that_has_read_enough_is_no_error(node, ready):
    node.answers = [ready]
    command = [sys.executable, "-m", "node.cli", "status", "--watch", "--api", node.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""


def test_the_key_comes_from_the_environment_or_a_file(node, ready, tmp_path, monkeypatch):
    node.answers = [ready]
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-file\nsk-other\n")
    file.chmod(0o600)
    monkeypatch.setenv("PIPPIN_API_KEY", "sk-environment")
    assert main(["status", "--api", node.url]) == 0
    assert main(["status", "--api", node.url, "--api-key-file", str(file)]) == 0
    assert main(["wait", "--api", node.url, "--api-key-file", str(file)]) == 0
    assert node.keys == ["Bearer sk-environment", "Bearer sk-file", "Bearer sk-file"]


def test_the_address_comes_from_the_environment(node, ready, monkeypatch, capsys):
    node.answers = [ready]
    monkeypatch.setenv("PIPPIN_HOST", node.url.removeprefix("http://"))
    assert main(["status"]) == 0
    assert node.paths == ["/cluster/status"]
    monkeypatch.setenv("PIPPIN_HOST", "ftp://x")
    with pytest.raises(SystemExit, match="2"):
        main(["status"])
    assert "'ftp://x' is not a node's address" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "file"), [("two words", None), ("", "/no/such/file")])
def test_no_usable_key(key, file, node, capsys, monkeypatch):
    monkeypatch.setenv("PIPPIN_API_KEY", key)
    with pytest.raises(SystemExit, match="2"):
        main(["status", "--api", node.url, *(["--api-key-file", file] if file else [])])
    assert "two words" not in capsys.readouterr().err
    assert node.paths == []


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"pippin {__version__}\n"
