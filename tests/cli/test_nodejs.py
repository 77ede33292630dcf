"""`node` where Node.js is meant: real processes, with scripts and with the real Node.js in its place."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from node.__main__ import _is_for_nodejs
from node.host.nodejs import has_program_on_stdin, nodes_on_path
from node.options import command as node_command
from tests.conftest import BIN

NODEJS = next((path for path in nodes_on_path() if Path(path).parent != BIN), None)
BOTH_HAVE = {"-h", "--help", "-v", "--version", "-c", "--check"}
needs_nodejs = pytest.mark.skipif(NODEJS is None, reason="there is no Node.js")
needs_npm = pytest.mark.skipif(NODEJS is None or not shutil.which("npm"), reason="there is no npm")
OURS = str(BIN / "node")


def ran(*command, path, **more):
    return subprocess.run(
        command, env={"PATH": ":".join(map(str, path))}, capture_output=True, text=True, timeout=60, check=False, **more
    )


@pytest.fixture
def theirs(tmp_path):
    """A directory with a `node` that tells how it was called."""
    return program(tmp_path / "theirs", 'printf "%s\\n" "$0" "$@"; cat; exit 7')


def program(directory, body):
    directory.mkdir()
    (directory / "node").write_text(f"#!/bin/sh\n{body}\n")
    (directory / "node").chmod(0o755)
    return directory


@pytest.mark.parametrize(
    "argv",
    [
        ["server.js"],
        ["dist/app"],
        ["/usr/lib/node_modules/npm/bin/npm-cli.js", "--version"],
        ["app.mjs", "--model", "x"],
        ["-e", "1"],
        ["-pe", "1"],
        ["-p", "process.version"],
        ["-r", "dotenv/config", "x"],
        ["-c", "x.js"],
        ["-i"],
        ["-"],
        ["--", "x.js"],
        [""],
        ["--check", "server.js"],
        ["--eval=1"],
        ["--inspect=9229", "x"],
        ["--max-old-space-size=4096", "build.js"],
        ["--max_old_space_size=4096", "build.js"],
        ["inspect", "x.js"],
        # of Node.js 22 to 25
        ["--run", "build"],
        ["--env-file-if-exists=.env", "x"],
        ["--experimental-strip-types", "a.ts"],
        ["--permission", "x"],
        ["--allow-net", "x"],
        ["--watch-path=src", "x"],
        ["--use-system-ca", "x"],
        ["--experimental-config-file", "x"],
        ["--localstorage-file=x", "x"],
        ["--test-isolation=none"],
        ["--test-coverage-include=x"],
        ["--entry-url", "x"],
    ],
)
def test_what_is_for_nodejs(argv):
    assert _is_for_nodejs(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["--model", "org/three.js"],
        ["--model=x"],
        ["--modle", "x"],
        ["--ctx-size", "8"],
        ["-m", "qwen3-8b"],
        ["-h"],
        ["--help"],
        ["--check", "--quick"],
        ["--print-config"],
    ],
)
def test_what_is_for_pippin(argv):
    assert not _is_for_nodejs(argv)


def test_options_are_pippins():
    for option in {name for param in node_command.params for name in param.opts} - BOTH_HAVE:
        assert not _is_for_nodejs([option, "value"]), option


@needs_nodejs
def test_flags_are_nodejs_s():
    """All that it documents, and all of V8."""
    told = [
        subprocess.run([NODEJS, option], capture_output=True, text=True, check=True).stdout
        for option in ("--help", "--v8-options")
    ]
    flags = set(re.findall(r"^ +(-{1,2}[\w.-]*)", "\n".join(told), re.MULTILINE))
    flags |= set(re.findall(r"^ +-[^ ]*, (--[\w.-]+)", told[0], re.MULTILINE))
    assert len(flags) > 500
    assert {"--max-old-space-size", "--require", "--eval", "-e", "-"} <= flags
    assert {flag for flag in flags - BOTH_HAVE if not _is_for_nodejs([flag, "x.js"])} == set()


def test_it_runs_as_if_pippins_were_not_there(theirs, tmp_path):
    """Arguments, input, exit code and directory; also if ours comes twice."""
    link = tmp_path / "bin"
    link.mkdir()
    (link / "node").symlink_to(OURS)
    path = [link, BIN, theirs, "/usr/bin", "/bin"]
    done = ran("node", "a b.js", "", "--model", "ü", path=path, input="from stdin", cwd=tmp_path)
    assert done.stdout.splitlines() == [str(theirs / "node"), "a b.js", "", "--model", "ü", "from stdin"]
    assert (done.returncode, done.stderr) == (7, "")


def test_it_is_the_same_process(tmp_path):
    there = program(tmp_path / "theirs", "echo $$; exec sleep 60")
    with subprocess.Popen([OURS, "x"], env={"PATH": f"{there}:/usr/bin:/bin"}, stdout=subprocess.PIPE) as process:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version_is_that_of_nodejs_if_there_is_one(flag, theirs):
    assert ran(OURS, flag, path=[theirs, "/usr/bin", "/bin"]).stdout.splitlines()[1:] == [flag]
    assert ran(OURS, flag, path=[BIN]).stdout == "pippin 0.1.0 (a node of a cluster; not Node.js)\n"
    assert ran(str(BIN / "pippin"), "node", flag, path=[theirs, BIN]).stdout.startswith("pippin 0.1.0")


@pytest.mark.parametrize("argv", [["server.js"], ["-e", "1"], ["--max-old-space-size=9", "x"]])
def test_without_nodejs(argv):
    done = ran(OURS, *argv, path=[BIN])
    assert done.returncode == 64
    assert f"can't run {argv[0]!r}, and there is no Node.js on the PATH" in done.stderr
    assert ran(OURS, path=[BIN], input="console.log(1)").returncode == 64


def test_a_shim_that_chooses_pippins_node_is_passed_over(theirs, tmp_path):
    """As pyenv makes one of each program that pip installs."""
    shim = program(tmp_path / "shim", f'exec "{OURS}" "$@"')
    assert ran("node", "x.js", path=[shim, theirs, "/usr/bin", "/bin"]).stdout.splitlines()[1:] == ["x.js"]
    assert ran("node", "x.js", path=[shim, BIN]).returncode == 64
    assert ran(OURS, "x.js", path=[BIN, shim, theirs, "/usr/bin", "/bin"]).returncode == 7


def test_a_program_that_cannot_be_run_is_told(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "node").write_bytes(b"\x7fELF")
    (broken / "node").chmod(0o755)
    done = ran(OURS, "x.js", path=[broken])
    assert done.returncode == 126
    assert done.stderr == f"node: {broken / 'node'} can't be run: Exec format error\n"


# --- stdin ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stdin():
    """Replaces file descriptor 0 while a test runs."""
    kept = os.dup(0)
    yield lambda descriptor: os.dup2(descriptor, 0)
    os.dup2(kept, 0)
    os.close(kept)


def test_a_pipe_with_a_program(stdin):
    reader, writer = os.pipe()
    stdin(reader)
    os.write(writer, b"1")
    assert has_program_on_stdin()
    assert _is_for_nodejs([])
    assert _is_for_nodejs(["--check"])
    os.read(0, 1)
    os.close(writer)
    assert not has_program_on_stdin(), "nothing came before its end"
    os.close(reader)


def test_a_pipe_that_a_manager_of_services_keeps(stdin, monkeypatch):
    monkeypatch.setattr("node.host.nodejs.PROGRAM_S", 0.01)
    reader, writer = os.pipe()
    stdin(reader)
    assert not _is_for_nodejs([])
    os.close(reader)
    os.close(writer)


def test_a_socket_as_of_ssh(stdin):
    ours, other = socket.socketpair()
    with ours, other:
        stdin(ours.fileno())
        other.send(b"1")
        assert has_program_on_stdin()


def test_a_file(stdin, tmp_path):
    for content, is_program in (("", False), ("1", True)):
        (tmp_path / "x.js").write_text(content)
        with (tmp_path / "x.js").open() as file:
            stdin(file.fileno())
            assert has_program_on_stdin() == is_program


def test_what_services_and_terminals_have(stdin):
    with Path(os.devnull).open() as nothing:
        stdin(nothing.fileno())
        assert not _is_for_nodejs([])
    main, terminal = os.openpty()
    stdin(terminal)
    os.write(main, b"typed\n")
    assert not _is_for_nodejs([])
    os.close(main)
    os.close(terminal)
    os.close(0)
    assert not _is_for_nodejs([])


# --- the real ones --------------------------------------------------------------------------------------------------

SHOWN = "JSON.stringify([process.argv.slice(1), process.env, process.cwd(), process.execPath])"


@needs_nodejs
@pytest.mark.parametrize(
    "more", [{}, {"LANG": "C"}, {"LC_ALL": "C"}, {"LANG": "de_DE.UTF-8", "NODE_OPTIONS": "--no-warnings"}]
)
def test_nodejs_itself(more, tmp_path):
    def told(node):
        environment = {"PATH": f"{BIN}:{Path(NODEJS).parent}", **more}
        command = [node, "-p", SHOWN, "a"]
        return json.loads(
            subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True).stdout
        )

    assert told(OURS) == told(NODEJS)


@needs_nodejs
def test_a_module_in_the_directory_is_not_imported(tmp_path):
    for name in ("os", "signal", "select", "node", "argparse", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    done = ran(OURS, "--no-deprecation", "-p", "1", path=[Path(NODEJS).parent], cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "")


@needs_npm
def test_npm_and_npx(tmp_path):
    tool = tmp_path / "node_modules" / "tool"
    tool.mkdir(parents=True)
    (tmp_path / "package.json").write_text(
        json.dumps({"dependencies": {"tool": "1.0.0"}, "scripts": {"hi": "node -p 6*7"}})
    )
    (tool / "package.json").write_text(json.dumps({"name": "tool", "version": "1.0.0", "bin": "tool"}))
    (tool / "tool").write_text("#!/usr/bin/env node\nconsole.log('the tool', process.argv.length)\n")
    (tool / "tool").chmod(0o755)
    (tmp_path / "node_modules" / ".bin").mkdir()
    (tmp_path / "node_modules" / ".bin" / "tool").symlink_to("../tool/tool")
    home = {"HOME": str(tmp_path), "npm_config_update_notifier": "false", "npm_config_offline": "true"}

    def said(*command, first=(BIN,)):
        path = ":".join(map(str, [*first, Path(shutil.which("npm")).parent, Path(NODEJS).parent, "/usr/bin", "/bin"]))
        environment = {"PATH": path, **home}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("npm", "--version") == said("npm", "--version", first=())
    assert "tool@1.0.0" in said("npm", "ls")
    assert said("npm", "run", "--silent", "hi") == "42\n"
    assert said("npx", "tool", "x") == "the tool 3\n"
