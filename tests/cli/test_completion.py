import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from node.cli.__main__ import main
from node.cli.commands import cluster
from node.cli.completion import SCRIPTS
from tests.conftest import BIN

MODELS = json.loads((Path(__file__).parent / "golden" / "models.json").read_text())
QWEN = "mlx-community/Qwen3-32B-4bit"


@pytest.fixture
def completed(node, capsys, monkeypatch):
    """Asks for completions of the words after `cluster`, where PIPPIN_HOST names the node."""
    monkeypatch.setenv("PIPPIN_HOST", node.url)

    def complete(*words):
        assert main(["complete", "--", *words]) == 0
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["dr"], ["drain"]),
        (["comp"], ["completion"]),
        (["load", "mlx-community/Qwen3-32"], [QWEN]),
        (["load", "--stages", "2", "qwen"], ["qwen3-8b", "qwen3"]),
        (["load", "--stages", ""], []),
        (["load", "qwen3", ""], []),
        (["wait", "--model", "org"], ["org/from-the-hub"]),
        (["load", "--st"], ["--stages"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["bogus", ""], []),
    ],
)
def test_what_may_come_next(words, found, node, completed):
    node.answers = [MODELS]
    assert completed(*words) == found


def test_names_of_nodes(node, status, completed):
    node.answers = [status]
    assert completed("drain", "mini-") == ["mini-1", "mini-2", "mini-3", "mini-4"]
    assert completed("logs", "-f", "mini-3") == ["mini-3"]


HOSTILE = [
    "mini-2$(touch x)",
    "`touch x`",
    "a;touch x",
    "a b",
    "a'b",
    'a"b',
    "*",
    "?",
    "[a]",
    "~",
    "a\nb",
    "$HOME",
    "a\\",
    "",
]


def named(status, names):
    """A status of nodes with these names, and those that they have."""
    nodes = [status["nodes"][0] | {"id": f"{number:04}", "name": name} for number, name in enumerate(names)]
    return status | {"nodes": nodes}


def test_names_on_which_a_shell_acts_are_shown_and_not_completed(node, status, completed, capsys):
    node.answers = [named(status, [*HOSTILE, "mini-1", "büro_2.lan:80/a@b+c"])]
    assert completed("drain", "") == ["mini-1", "büro_2.lan:80/a@b+c"]
    node.answers = [named(status, HOSTILE)]
    main(["status", "--api", node.url])
    assert "mini-2$(touch x)" in capsys.readouterr().out


def test_ids_of_models_on_which_a_shell_acts_are_not_completed(node, completed):
    bad = [MODELS["models"][0] | {"id": f"org/{name}"} for name in HOSTILE if name]
    node.answers = [MODELS | {"models": bad, "short_names": {}}]
    assert completed("load", "org") == []


def test_without_a_node_there_are_no_names(node, completed):
    node.answers = [(500, b"")]
    assert completed("load", "") == []


def test_it_is_not_among_the_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "complete " not in capsys.readouterr().out


def test_help_shows_each_command_under_one_heading_by_name():
    shown = [name for names in cluster.sections.values() for name in names]
    assert sorted(shown) == sorted(name for name, command in cluster.commands.items() if not command.hidden)
    assert all(names == sorted(names) for names in cluster.sections.values())


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], ["Answers:", "  chat ", "Models:", "  load ", "  rm ", "The cluster:", "  drain ", "  status "]),
        (["service"], ["Commands:", "  install ", "  logs ", "  status ", "  uninstall "]),
    ],
)
def test_help_of_commands(words, lines, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--help"])
    said = capsys.readouterr().out
    at = [said.index(f"\n{line}") for line in lines]
    assert at == sorted(at)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_valid(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "cluster complete --" in script
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_asks_for_the_word_under_the_cursor(tmp_path, capsys):
    main(["completion", "bash"])
    (tmp_path / "cluster").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "cluster").chmod(0o755)
    script = f"""{capsys.readouterr().out}
        PATH={tmp_path}:$PATH; COMP_WORDS=(cluster drain mi); COMP_CWORD=2; _cluster
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["complete", "--", "drain", "mi"]


SHELLS = {
    "bash": (["bash", "--norc", "-i"], "source <(cluster completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; source <(cluster completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "cluster completion fish | source"),
}


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, command, directory, **environment):
        self.process, self.terminal = pty.fork()
        if not self.process:
            os.chdir(directory)
            os.execvpe(command[0], command, os.environ | {"TERM": "dumb", "HOME": str(directory)} | environment)
        self.shown = ""

    def types(self, keys):
        os.write(self.terminal, keys.encode())

    def shows(self, text):
        """Wait until it has shown this since the last time."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.shown!r}"
            if select.select([self.terminal], [], [], 1)[0]:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")
        self.shown = ""

    def close(self):
        os.close(self.terminal)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_and_enter_run_nothing_that_a_node_is_called(shell, node, status, tmp_path):
    command, setup = SHELLS[shell]
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    (tmp_path / "mini-2x").touch()  # the fallback to files' names must not be what is seen
    node.answers = [named(status, ["mini-2$(touch x)", "maxi-7"])]
    terminal = Terminal(command, tmp_path, PIPPIN_HOST=node.url, PATH=f"{BIN}:{os.environ['PATH']}")
    try:
        terminal.types(f"{setup}; echo RE''ADY\r")
        terminal.shows("READY")
        terminal.types("cluster drain max\t")
        terminal.shows("maxi-7")
        terminal.types("\x15cluster doctor --node mini-2\t; echo DO''NE\r")
        terminal.shows("DONE")
    finally:
        terminal.close()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in ("x", "mini-2x")) == ["mini-2x"]
