"""Issues of a machine and of a terminal, each provoked."""

import platform
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from node.core.nodes import Advert, PeerHint
from node.core.warning_codes import Code
from node.host import firewall
from node.host.examination import LOW_DISK, NEEDED_DESCRIPTORS, examine, examine_start, examine_terminal
from node.host.identity import open_data_directory

PYTHON_APP = "/opt/homebrew/Cellar/python@3.13/3.13.9/Frameworks/Python.framework/Versions/3.13/Resources/Python.app"
BREWED = f"{PYTHON_APP}/Contents/MacOS/Python"
"""What runs when `python3.13` of Homebrew is started."""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has enough of all."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LOW_DISK))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (NEEDED_DESCRIPTORS, NEEDED_DESCRIPTORS))


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert examine("mini", [tmp_path]) == ()


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once, also if both folders are on it; they need not exist yet."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 2**30))
    (issue,) = examine("mini", [tmp_path / "a" / "b", tmp_path])
    assert issue.code == Code.DISK_LOW
    assert issue.text == f"mini has 3.0 GB left on the disk of {tmp_path / 'a' / 'b'}, where it keeps models."


@pytest.mark.parametrize(("limit", "found"), [(256, True), (1024, False), (resource.RLIM_INFINITY, False)])
def test_few_descriptors(limit: int, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    issues = examine("mini", [])
    assert [issue.code for issue in issues] == [Code.FEW_DESCRIPTORS] * found
    assert all("mini may open 256 files" in issue.text for issue in issues)


def test_wired_memory_without_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.host.examination.stranded", lambda: 5 * 2**30)
    (issue,) = examine("mini", [])
    assert issue.code == Code.WIRED_MEMORY
    assert "5.0 GB of the memory of mini" in issue.text
    assert "no process that this user may look at" in issue.text
    look, restart = issue.hint.index("programs of other users"), issue.hint.index("restart this Mac")
    assert look < restart, "memory that a service has is not lost"


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program named `node` in a new directory."""

    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        path = tmp_path / name / "node"
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    return make


def test_a_shell_whose_node_is_another(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = program("ours"), program("theirs")
    monkeypatch.setenv("PATH", f"{ours.parent}:{theirs.parent}")
    (issue,) = examine_terminal(ours.parent)
    assert issue.text == f"`node` is Pippin's in this shell. Called as Node.js is called, it runs {theirs}."
    monkeypatch.setenv("PATH", f"{theirs.parent}:{ours.parent}")
    (issue,) = examine_terminal(ours.parent)
    assert issue.code == Code.WHICH_NODE
    assert f"`node` is {theirs}" in issue.text
    monkeypatch.setenv("PATH", str(ours.parent))
    assert list(examine_terminal(ours.parent)) == []
    monkeypatch.setenv("PATH", "/no/such")
    assert list(examine_terminal(ours.parent)) == []


def test_a_link_to_our_node_is_ours(
    program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pipx and uv make it."""
    ours = program("ours")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "node").symlink_to(ours)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert list(examine_terminal(ours.parent)) == []


def test_rosetta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (issue,) = examine_terminal(Path("/no/such"))
    assert issue.code == Code.ROSETTA


def test_a_folder_that_macos_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "exe", lambda _: BREWED)
    denied = [Path("/Volumes/SSD/models")]
    (issue,) = examine("mini", [], denied=denied)
    assert issue.code == Code.FOLDER_DENIED
    assert "mini may not read /Volumes/SSD/models, where it looks for models" in issue.text
    assert "Full Disk Access" not in issue.hint
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    (issue,) = examine("mini", [], denied=denied)
    assert f"Full Disk Access, add {PYTHON_APP} and start" in issue.hint


def test_a_data_directory_that_is_gone_while_the_node_runs(tmp_path: Path) -> None:
    with open_data_directory(tmp_path / "node") as data:
        assert examine("mini", [], data=data) == ()
        shutil.rmtree(tmp_path / "node")
        (issue,) = examine("mini", [], data=data)
        assert issue.code == Code.DATA_GONE
        assert f"mini no longer finds its data directory {tmp_path / 'node'}" in issue.text
        (tmp_path / "node").mkdir()
        assert examine("mini", [], data=data), "an empty one, as of who makes a folder in it, is not the node's"


def test_multicast_that_does_not_work() -> None:
    (issue,) = examine("mini", [], deaf="nothing is heard")
    assert issue.code == Code.NO_MULTICAST
    assert "does not work there: nothing is heard." in issue.text


# --- nodes that can't be reached ------------------------------------------------------------------------------------


def advert(port: int) -> Advert:
    return Advert("mini-2", PeerHint("id-2", ("127.0.0.1", "127.0.0.2"), port))


@pytest.mark.parametrize("error", [TimeoutError(), OSError(113, "No route to host")])
def test_a_firewall_that_drops_connections(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    (issue,) = examine("mini", [], unreached=[advert(52416)])
    assert issue.code == Code.NODE_UNREACHABLE
    assert issue.text == "mini-2 advertises itself by mDNS, but mini cannot connect to it at 127.0.0.1:52416."


def test_a_port_that_answers_is_behind_no_firewall() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert examine("mini", [], unreached=[advert(port)]) == ()
    assert examine("mini", [], unreached=[advert(port)]) == (), "its process has ended: the machine refuses"


@pytest.mark.parametrize(
    ("said", "blocked"),
    [
        ({"--getglobalstate": "Firewall is disabled. (State = 0)"}, False),
        ({"--getglobalstate": "Firewall is blocking all non-essential incoming connections. (State = 2)"}, True),
        (
            {
                "--getglobalstate": "Firewall is enabled. (State = 1)",
                "--getappblocked": "Incoming connection to the application is blocked",
            },
            True,
        ),
        (
            {
                "--getglobalstate": "Firewall is enabled. (State = 1)",
                "--getappblocked": "Incoming connection to the application is permitted",
            },
            False,
        ),
        ({}, False),
    ],
)
def test_the_firewall_of_macos(said: dict[str, str], blocked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(firewall, "_ask", lambda question, *_: said.get(question, ""))
    assert bool(firewall.blocked_program()) is blocked


@pytest.mark.parametrize(
    ("runs", "listed", "told"),
    [
        (BREWED, BREWED, PYTHON_APP),
        (BREWED, PYTHON_APP, PYTHON_APP),
        (BREWED, "/opt/homebrew/bin/python3.13", ""),
        ("/Users/anna/.local/share/uv/python/bin/python3.13",) * 3,
    ],
)
def test_the_firewall_is_asked_for_the_program_that_runs(
    runs: str, listed: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python3.13` of Homebrew and of python.org only starts the one in its Python.app, which the firewall lists."""

    def ask(question: str, *programs: str) -> str:
        if question == "--getglobalstate":
            return "Firewall is enabled. (State = 1)"
        return f"Incoming connection to the application is {'blocked' if programs == (listed,) else 'permitted'}"

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(psutil.Process, "exe", lambda _: runs)
    monkeypatch.setattr(firewall, "_ask", ask)
    assert firewall.blocked_program() == told


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(firewall, "_ask", None)
    assert firewall.blocked_program() == ""


# --- what stays until the next start --------------------------------------------------------------------------------

WELL: dict[str, Any] = {"excess": "", "blocked": "", "blas": None, "allow_sleep": False, "is_open": False}


@pytest.mark.parametrize(
    ("ill", "code", "said"),
    [
        ({"excess": "much --memory"}, Code.MEMORY_LIMIT, "mini was started with too much much --memory."),
        ({"blocked": "/bin/python3"}, Code.FIREWALL, "blocks incoming connections to /bin/python3"),
        ({"blas": ""}, Code.SLOW_BLAS, "`apt install libblis4-pthread`, then `LD_PRELOAD=/usr/lib/$(uname -m)"),
        ({"blas": "/usr/lib/libopenblas.so.0"}, Code.SLOW_BLAS, "`LD_PRELOAD=/usr/lib/libopenblas.so.0 node`"),
        ({"allow_sleep": True}, Code.MAY_SLEEP, "goes to sleep when its Mac is idle"),
        ({"is_open": True}, Code.OPEN_API, "without an API key (--open-api)"),
    ],
)
def test_issues_of_the_start(ill: dict[str, Any], code: Code, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert list(examine_start("mini", **WELL)) == []
    (issue,) = examine_start("mini", **(WELL | ill))
    assert issue.code == code
    assert said in f"{issue.text} {issue.hint}"


def test_only_a_mac_goes_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert list(examine_start("mini", **(WELL | {"allow_sleep": True}))) == []
