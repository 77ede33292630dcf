import json
import shutil
import subprocess
from pathlib import Path

import pytest

from node.cli.__main__ import main
from node.cli.completion import SCRIPTS

MODELS = json.loads((Path(__file__).parent / "golden" / "models.json").read_text())
QWEN = "mlx-community/Qwen3-32B-4bit"


def completed(node, capsys, *words):
    assert main(["complete", "--api", node.url, "--", *words]) == 0
    return capsys.readouterr().out.split()


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
def test_what_may_come_next(words, found, node, capsys):
    node.answers = [MODELS]
    assert completed(node, capsys, *words) == found


def test_names_of_nodes(node, status, capsys):
    node.answers = [status]
    assert completed(node, capsys, "drain", "mini-") == ["mini-1", "mini-2", "mini-3", "mini-4"]
    assert completed(node, capsys, "logs", "-f", "mini-3") == ["mini-3"]


def test_without_a_node_there_are_no_names(node, capsys):
    node.answers = [(500, b"")]
    assert completed(node, capsys, "load", "") == []


def test_it_is_not_among_the_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "complete " not in capsys.readouterr().out


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
