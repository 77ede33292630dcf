"""The server of the sandboxes starts under macOS's Seatbelt where that works. Tested with programs in its place."""

import sys
from pathlib import Path

import pytest

import node
from node.text import seatbelt


@pytest.fixture
def program(tmp_path):
    """Make a program in the place of sandbox-exec."""

    def program(script):
        path = tmp_path / "sandbox-exec"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return program


def test_there_is_none_on_this_system(tmp_path):
    assert seatbelt.command(tmp_path / "none") == []


def test_it_confines_what_follows(program):
    path = program('shift 2; exec "$@"')
    assert seatbelt.command(path) == [str(path), "-p", seatbelt.profile()]


REFUSES_A_JOB = 'case "$*" in *grammar_job*) exit 1;; esac; shift 2; exec "$@"'


@pytest.mark.parametrize("script", ["echo no such rule >&2; exit 65", "exec false", REFUSES_A_JOB])
def test_a_node_starts_without_it_if_python_fails_in_it(program, caplog, script):
    assert seatbelt.command(program(script)) == []
    assert "without macOS's Seatbelt" in caplog.text


def test_homes_are_closed_but_for_python_and_private_folders(monkeypatch, tmp_path):
    home = tmp_path / 'a "home"'
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(sys, "prefix", str(home / "venv"))
    rules = seatbelt.profile().split("\n")
    written = str(home).replace('"', '\\"')
    closed = next(at for at, rule in enumerate(rules) if rule.startswith("(deny file-read-data"))
    opened = next(at for at, rule in enumerate(rules) if rule.startswith("(allow file-read-data"))
    assert closed < opened  # the last one decides
    assert f'(subpath "{written}")' in rules[closed]
    assert f'(subpath "{written}")' not in rules[opened]
    assert f'(subpath "{written}/venv")' in rules[opened]
    assert f'(subpath "{Path(node.__file__).parent}")' in rules[opened]
    assert all(rule.count("(") == rule.count(")") for rule in rules)


def test_the_folder_of_a_clone_may_be_listed_and_nothing_else_there_read():
    """Python finds the package in it, while a rule closes the home that it is in."""
    (folder,) = (Path(path).resolve().parent for path in node.__path__)
    rules = seatbelt.profile().split("\n")
    assert f'(allow file-read-data (literal "{folder}"))' in rules
    assert not any(f'(subpath "{folder}")' in rule for rule in rules)
