"""Every command in the README and in docs/ can be pasted as it stands."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from node.check.command import check
from node.cli.commands import cluster
from node.host.secret import new_secret
from node.options import command as node
from node.pippin import USAGE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:sudo )?(?:\.venv/bin/)?(?:cluster|node|pippin) [^`]*)`")
OURS = {"cluster", "node", "pippin"}
OTHERS = {
    *(
        "aider",
        "brew",
        "cat",
        "chmod",
        "claude",
        "cline",
        "cp",
        "curl",
        "docker",
        "eval",
        "export",
        "git",
        "open-webui",
        "openssl",
        "pip",
        "pipx",
        "rm",
    ),
    *("source", "umask", "uv", "/usr/libexec/ApplicationFirewall/socketfilterfw"),
}
"""Programs of others that the pages name."""


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line for the shell, without assignments, `sudo` and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    is_file = False
    for word in [*lexer, ";"]:
        if is_file:
            is_file = False
        elif word in ("<", ">", ">>"):
            is_file = True
        elif set(word) <= set(";&|()"):
            while words and (words[0] == "sudo" or re.fullmatch(r"\w+=.*", words[0])):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(word)


def lines(page: Path) -> Iterator[str]:
    for block in BLOCK.findall(page.read_text()):
        yield from block.replace("\\\n", " ").splitlines()


def program_of(words: Sequence[str]) -> str:
    found = re.fullmatch(r"\$\(command -v (\w+)\)", words[0])
    return found[1] if found else words[0].removeprefix(".venv/bin/").removeprefix("./")


def parse(program: str, args: list[str], *, whole: bool = True) -> None:
    """As the program would, without running anything. `whole`: also that nothing is missing. Raises click.UsageError."""
    if program == "pippin":
        if args[0].startswith("-"):
            return
        program, args = (args[0], args[1:]) if args[0] in OURS else ("cluster", args)
    command: click.Command = cluster if program == "cluster" else node
    if args[:1] == ["--check"]:
        command, args = check, args[1:]
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group) and args:
        name, found, args = command.resolve_command(context, args)
        assert found
        command, context = found, click.Context(found, parent=context, info_name=name)
    if whole:
        command.make_context(context.info_name, args, parent=context.parent)
        return
    known = {option for param in command.get_params(context) for option in param.opts}
    unknown = {arg.partition("=")[0] for arg in args if arg.startswith("-")} - known
    if unknown:
        raise click.UsageError(f"{context.command_path} has no {', '.join(unknown)}")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """What earlier commands of the pages have made."""
    monkeypatch.chdir(tmp_path)
    for name in ("secret", "keys"):
        Path(name).touch(0o600)
        Path(name).write_text(f"{new_secret()}\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_to_be_pasted_can_be(page: Path) -> None:
    for line in lines(page):
        for words in commands(line):
            program = program_of(words)
            if program in OURS:
                parse(program, words[1:])
            elif program == "python":
                script = ROOT / words[1] if not words[1].startswith("-") else None
                assert script is None or script.is_file(), line
            elif program.startswith("scripts/"):
                assert os.access(ROOT / program, os.X_OK), line
            else:
                assert program in OTHERS, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_exists(page: Path) -> None:
    for text in INLINE.findall(ANY_BLOCK.sub("", page.read_text())):
        for words in commands(text):
            program = program_of(words)
            if program in OURS:
                parse(program, words[1:], whole=False)


def test_what_is_made_in_the_clone_is_not_committed_by_chance() -> None:
    pasted = "\n".join(line for page in PAGES for line in lines(page))
    made = {*re.findall(r"(?:>|-keyout|-out) *([\w.]+)", pasted), "pippin-check.txt", "dist/x.whl"}
    assert made >= {"secret", "keys", "key.pem", "cert.pem"}
    ignored = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(ignored.stdout.split()) == made


def test_a_wrong_command_is_seen() -> None:
    for wrong in ("cluster stauts", "node --modle x", "cluster service instal", "pippin cluster rm", "pippin rn m"):
        with pytest.raises(click.UsageError):
            parse(wrong.split()[0], wrong.split()[1:])
    assert list(commands("(umask 077; A=1 cluster secret new > keys)  # once")) == [
        ["umask", "077"],
        ["cluster", "secret", "new"],
    ]


def test_pippins_help_names_all_commands() -> None:
    named = re.findall(r"^  ((?:\w+  )+)", USAGE, re.MULTILINE)
    assert [line.split() for line in named] == list(cluster.sections.values())
