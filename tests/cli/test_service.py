"""`cluster service`: the files that it writes, and the commands that it gives to a system made of scripts."""

import os
import plistlib
import pwd
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from node.cli import service as command
from node.cli.__main__ import main
from node.host.service import HUB_VARIABLES, LAUNCHD, SYSTEMD, Manager, Service
from tests.cli.conftest import GOLDEN

ANNA = Service(Path("/opt/pippin 1%/bin/node"), "anna", Path("/Users/anna"), config=Path("/Users/anna/my $config.toml"))
LAUNCHCTL = """
case $1 in
bootstrap) echo 512 > {loaded} ;;
bootout) rm {loaded} ;;
print)
  [ -e {loaded} ] || exit 113
  printf 'system/pippin = {{\\n\\tactive count = 1\\n\\tstate = running\\n\\n\\tpid = 512\\n\\tlast exit code = 0\\n}}\\n' ;;
esac
"""
BUSY_LAUNCHCTL = """
case $1 in
bootstrap)
  [ -e {loaded}.tried ] || {{ touch {loaded}.tried; echo 'Bootstrap failed: 5: Input/output error'; exit 5; }}
  echo 512 > {loaded}; echo 'Bootstrap failed: 37: Operation already in progress'; exit 37 ;;
bootout) touch {loaded}.ends; echo 'Boot-out failed: 36: Operation now in progress'; exit 36 ;;
print)
  [ -e {loaded} ] || exit 113
  [ ! -e {loaded}.ends ] || rm {loaded} {loaded}.ends ;;
esac
"""
SYSTEMCTL = """
case $*:$([ -e {loaded} ] && echo active) in
"enable --now pippin:"*) echo 512 > {loaded} ;;
"disable --now pippin:"*) rm {loaded} ;;
"is-active "*:) exit 3 ;;
"show "*:active) printf 'MainPID=512\\nExecMainStatus=0\\nActiveState=active\\nSubState=running\\n' ;;
"show "*) printf 'MainPID=0\\nExecMainStatus=70\\nActiveState=activating\\nSubState=auto-restart\\n' ;;
esac
"""


@dataclass
class Machine:
    """A system with a service manager of its own: scripts on the PATH that note their calls."""

    manager: Manager
    bin: Path
    calls: Path
    loaded: Path
    """A file that is there while the service is loaded."""

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{text.format(loaded=self.loaded)}')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def changes(self) -> list[str]:
        """Calls since the last time that change something."""
        called = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.write_text("")
        return [call for call in called if call.split()[1] not in ("print", "show", "is-active")]


@pytest.fixture(params=[LAUNCHD, SYSTEMD], ids=["launchd", "systemd"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """As root, called with sudo by the user of the tests."""
    kind: Manager = request.param
    manager = replace(kind, file=tmp_path / kind.file.name)
    machine = Machine(manager, tmp_path / "bin", tmp_path / "calls", tmp_path / "loaded")
    machine.bin.mkdir()
    for name, text in {"launchctl": LAUNCHCTL, "systemctl": SYSTEMCTL, "journalctl": "", "tail": ""}.items():
        machine.program(name, text)
    monkeypatch.setenv("PATH", f"{machine.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(command, "LAUNCHD", manager)
    monkeypatch.setattr(command, "SYSTEMD", manager)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_USER", raising=False)
    for name in HUB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return machine


def me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("api-port = 8080\n")
    return path


# --- the files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manager", [LAUNCHD, SYSTEMD], ids=["launchd", "systemd"])
def test_the_file(manager: Manager) -> None:
    home = Path("/Users/anna" if manager is LAUNCHD else "/home/anna")
    service = replace(ANNA, home=home, config=home / "my $config.toml")
    assert manager.definition(service) == (GOLDEN / manager.file.name).read_text()


@pytest.mark.parametrize("odd", ["\n", "\r", "\x1b[2J", "\0", "\u2028", "\udcff"])
@pytest.mark.parametrize("field", ["program", "user", "home", "config"])
def test_no_character_ends_a_line_of_the_file(field: str, odd: str) -> None:
    text = f"/home/anna{odd}ExecStartPre=/bin/sh"
    with pytest.raises(ValueError, match="can't be printed"):
        replace(ANNA, **{field: text if field == "user" else Path(text)})


def test_an_odd_path_is_refused(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a\nExecStartPre=touch x.toml"
    odd.touch()
    for options in ([], ["--print"]):
        assert main(["service", "install", "--user", me(), "--config", str(odd), *options]) == 1
        assert "can't be printed" in capsys.readouterr().err
    assert not machine.manager.file.exists()


def test_launchd_reads_what_was_meant() -> None:
    read = plistlib.loads(LAUNCHD.definition(ANNA).encode())
    assert read["ProgramArguments"][:3] == ["/opt/pippin 1%/bin/node", "--config", "/Users/anna/my $config.toml"]
    assert read["KeepAlive"] is read["RunAtLoad"] is True


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze of systemd")
def test_systemd_finds_no_mistake(tmp_path: Path) -> None:
    program = tmp_path / "with $ and 100%" / "node"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    service = Service(
        program, me(), Path.home(), config=tmp_path / 'con "fig" \\ $.toml', hub={"HF_HOME": "/100% of $x"}
    )
    file = tmp_path / "pippin.service"
    file.write_text(SYSTEMD.definition(service))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- the commands ---------------------------------------------------------------------------------------------------


def test_install_and_uninstall(machine: Machine, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = command.service_of(me(), str(config))
    assert main(["service", "install", "--user", me(), "--config", str(config)]) == 0
    assert machine.manager.file.read_text() == machine.manager.definition(service)
    assert stat.S_IMODE(machine.manager.file.stat().st_mode) == 0o644
    started = [" ".join(each) for each in machine.manager.start]
    assert machine.changes() == started
    assert main(["service", "status"]) == 0
    assert "running, process 512" in capsys.readouterr().out

    assert main(["service", "install", "--user", me(), "--config", str(config)]) == 0
    assert machine.changes() == [" ".join(machine.manager.stop), *started]

    assert main(["service", "uninstall"]) == 0
    assert machine.changes() == [" ".join(each) for each in (machine.manager.stop, *machine.manager.after_removal)]
    assert not machine.manager.file.exists()
    assert main(["service", "status"]) == 3
    assert "there is no service pippin" in capsys.readouterr().err


def test_a_node_that_would_not_start_is_not_installed(
    machine: Machine, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("api_port = 1\n")
    assert main(["service", "install", "--user", me(), "--config", str(config)]) == 1
    assert "The node would not start: " in (said := capsys.readouterr().err)
    assert "the nearest is 'api-port'. Nothing has been changed." in said
    assert not machine.manager.file.exists()
    assert machine.changes() == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_the_options_are_checked_as_the_service_will_read_them(config: Path, tmp_path: Path) -> None:
    """Root's group may read the file, the user of the service not."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    config.chmod(0o040)
    program = tmp_path / "node"
    program.write_text(f"#!/bin/sh\ncat {config}\n")
    program.chmod(0o755)
    with pytest.raises(command.ServiceFailed, match="Permission denied"):
        command._check_options(Service(program, "nobody", tmp_path))


def test_no_more_groups_than_the_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac's administrator has 16 groups with one shared folder, 17 with two; macOS gives a process 16 at most."""
    user = pwd.getpwnam("nobody")
    groups = [*range(500, 517), user.pw_gid]
    monkeypatch.setattr(os, "getgrouplist", lambda *_: groups)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_NGROUPS_MAX": 16}[name])
    monkeypatch.setattr(os, "getuid", lambda: 0)
    found = command._identity("nobody")["extra_groups"]
    assert found == [user.pw_gid, *range(500, 515)]


# --- what macOS keeps from services ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "guarded"),
    [
        ("~/Documents/pippin/.venv/bin/node", True),
        ("~/documents/pippin/.venv/bin/node", True),
        ("/Users/anna/Desktop/config.toml", True),
        ("~/Downloads", True),
        ("~/Library/Mobile Documents/com~apple~CloudDocs/models", True),
        ("/Volumes/SSD/models", True),
        ("~/pippin/.venv/bin/node", False),
        ("~/Documents-2/pippin", False),
        ("/Users/bert/Documents", False),
        ("~/Library/Logs", False),
        ("llama-3.2-1b", False),
    ],
)
def test_guarded_folders(path: str, guarded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Documents").mkdir()
    monkeypatch.chdir(tmp_path / "Documents")  # a service has no such directory
    assert LAUNCHD.guards(Path(path), ANNA.home) is guarded
    assert not SYSTEMD.guards(Path(path), ANNA.home)


def test_a_link_into_a_guarded_folder(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(tmp_path / "Documents" / "models")
    assert LAUNCHD.guards(Path("~/models"), tmp_path)


@pytest.mark.parametrize("needed", ["program", "config", "api-key-file"])
def test_what_a_node_needs_is_not_kept_from_it(
    needed: str, machine: Machine, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this terminal the node may read its files: as a service on a Mac it would end at once, again and again."""
    if not machine.manager.guarded:
        pytest.skip("only macOS guards folders")
    folder = config.parent / "Documents"
    folder.mkdir()
    (folder / "file").write_text("a-key\n")
    (folder / "file").chmod(0o600)
    (folder / "node").write_text(f'#!/bin/sh\nexec {Path(sys.executable).with_name("node")} "$@"\n')
    (folder / "node").chmod(0o755)
    service = replace(command.service_of(me(), str(config)), home=config.parent)
    if needed == "program":
        service = replace(service, program=folder / "node")
    elif needed == "config":
        service = replace(service, config=folder / "config.toml")
        (folder / "config.toml").write_text("")
    else:
        config.write_text(f'api-key-file = "{folder / "file"}"\n')
    monkeypatch.setattr(command, "service_of", lambda *_: service)
    assert main(["service", "install"]) == 1
    said = capsys.readouterr().err
    assert f"{folder}/" in said
    assert "is in a folder that macOS keeps from services, so the node would not start. Move it elsewhere" in said
    assert machine.changes() == []


def test_models_that_macos_keeps_from_the_node_are_told(
    machine: Machine, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = config.parent / "Documents" / "models"
    folder.mkdir(parents=True)
    config.write_text(f'models-dir = ["{folder}"]\nmodel = ["llama-3.2-1b"]\n')
    home = replace(command.service_of(me(), str(config)), home=config.parent, hub={"HF_HOME": "/Volumes/SSD/hf"})
    monkeypatch.setattr(command, "service_of", lambda *_: home)
    assert main(["service", "install"]) == 0
    said = capsys.readouterr().err
    expected = [str(folder), "/Volumes/SSD/hf/hub"] if machine.manager.guarded else []
    assert re.findall("cluster: macOS keeps (.*) from services until you allow it", said) == expected
    assert machine.manager.file.exists()


def test_the_folder_of_the_hub_is_that_of_the_users_shell(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the node would fetch all models again. A token is no one else's to read, and the file is."""
    monkeypatch.setenv("HF_HOME", "/data/100% hf")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert main(["service", "install", "--print", "--user", me()]) == 0
    shown = capsys.readouterr().out
    if machine.manager.file.suffix == ".plist":
        assert plistlib.loads(shown.encode())["EnvironmentVariables"]["HF_HOME"] == "/data/100% hf"
    else:
        assert 'Environment="HF_HOME=/data/100%% hf"\n' in shown
    assert "hf_secret" not in shown
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    assert main(["service", "install"]) == 1
    assert "sudo --preserve-env=HF_HOME /" in capsys.readouterr().err


@pytest.mark.parametrize("manager", [LAUNCHD, SYSTEMD], ids=["launchd", "systemd"])
def test_a_services_file_is_read_again(manager: Manager) -> None:
    service = replace(ANNA, hub={"HF_HOME": '/data/100% "hf" $x', "HF_TOKEN_PATH": "/data/token"})
    installed = manager.read(manager.definition(service))
    assert (installed.user, installed.config) == ("anna", ANNA.config)
    assert installed.arguments[: len(service.arguments)] == list(service.arguments)
    assert service.hub.items() <= installed.environment.items()
    for other in ("", "<plist/>", "[Service]\nUser=anna\n"):
        with pytest.raises(ValueError, match="no service"):
            manager.read(other)


@pytest.mark.parametrize("machine", [LAUNCHD], indirect=True)
def test_a_node_that_ends_while_launchd_goes_on_is_replaced_and_removed(machine: Machine, config: Path) -> None:
    machine.program("launchctl", BUSY_LAUNCHCTL)
    machine.loaded.touch()
    assert main(["service", "install", "--user", me(), "--config", str(config)]) == 0
    enable, bootstrap = (" ".join(each) for each in machine.manager.start)
    bootout = " ".join(machine.manager.stop)
    assert machine.changes() == [bootout, enable, bootstrap, bootstrap]
    assert machine.loaded.exists()
    assert main(["service", "uninstall"]) == 0
    assert machine.changes() == [bootout]
    assert not machine.manager.file.exists()


def test_install_says_where_the_hubs_models_and_token_are(
    machine: Machine, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = ["service", "install", "--user", me(), "--config", str(config)]
    monkeypatch.setenv("SUDO_USER", me())
    home = Path(pwd.getpwnam(me()).pw_dir)
    assert main(install) == 0
    said = capsys.readouterr().out
    assert f"Models of the hub: {home}/.cache/huggingface/hub\n" in said
    assert "If your shell sets HF_HOME, install it again with: sudo --preserve-env=HF_HOME\n" in said
    hub = config.parent / "hf"
    monkeypatch.setenv("HF_HOME", str(hub))
    assert main(install) == 0
    said = capsys.readouterr().out
    assert f"Models of the hub: {hub}/hub\n" in said
    assert f"none. `hf auth login` as {me()} puts one into {hub}/token." in said
    assert "preserve-env" not in said
    monkeypatch.setenv("HF_TOKEN_PATH", str(config.parent / "token"))
    (config.parent / "token").write_text("hf_secret")
    assert main(install) == 0
    said = capsys.readouterr().out
    assert f"Token for gated models: {config.parent}/token\n" in said
    assert "HF_TOKEN_PATH" in machine.manager.file.read_text()
    assert "hf_secret" not in said + machine.manager.file.read_text()


def test_uninstall_lists_what_stays(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    for path in (".pippin", "data", ".cache/huggingface/hub", ".cache/pippin", "Library/Logs", ".config/pippin"):
        (home / path).mkdir(parents=True)
    options, log = home / ".config" / "pippin" / "config.toml", home / "Library" / "Logs" / "pippin.log.1"
    log.touch()
    monkeypatch.setattr("pwd.getpwnam", lambda _: pwd.struct_passwd(_entry(home)))

    def uninstall() -> list[str]:
        machine.manager.file.write_text(machine.manager.definition(Service(Path("/bin/node"), "anna", home)))
        assert main(["service", "uninstall"]) == 0
        return [line.split("   ")[0].strip() for line in capsys.readouterr().out.splitlines()]

    last = [str(home / ".cache" / "huggingface" / "hub"), str(home / ".cache" / "pippin")]
    logs = [str(log)] if machine.manager.log_files else []
    assert uninstall() == ["The service is gone.", "Still there:", str(home / ".pippin"), *logs, *last]
    options.write_text('data-dir = "~/data"\n')
    assert uninstall()[2:] == [str(home / "data"), str(options), *logs, *last]
    shutil.rmtree(home)
    assert uninstall() == ["The service is gone."]
    number = re.sub("<string>anna</string>", "<integer>7</integer>", _without_program(machine.manager))
    of_hand = (_without_program(machine.manager), number, "User=anna\nExecStart=/bin/node --config")
    for damaged in ("of another version", *of_hand):
        machine.manager.file.write_text(damaged)
        assert main(["service", "uninstall"]) == 0
        assert not machine.manager.file.exists()


def _without_program(manager: Manager) -> str:
    """As a person may have changed the file."""
    text = manager.definition(Service(Path("/bin/node"), "anna", Path("/home/anna")))
    return re.sub(r"(<key>ProgramArguments</key>\s*<array>).*?(</array>)", r"\1\2", text, flags=re.DOTALL)


def _entry(home: Path) -> tuple[str, str, int, int, str, str, str]:
    """Of a user in the system's list."""
    return "anna", "x", os.getuid(), os.getgid(), "", str(home), "/bin/sh"


def test_a_stopped_service(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.manager.file.touch()
    assert main(["service", "status"]) == 4
    expected = {"pippin.plist": "stopped", "pippin.service": "auto-restart, last exit code 70"}
    assert f"pippin   {expected[machine.manager.file.name]}   " in capsys.readouterr().out


def test_logs(machine: Machine) -> None:
    machine.manager.file.write_text(machine.manager.definition(ANNA))
    assert main(["service", "logs"]) == 0
    assert main(["service", "logs", "-f"]) == 0
    log = "/Users/anna/Library/Logs/pippin.log"
    expected = {
        "pippin.plist": [f"tail -n 200 {log}", f"tail -n 200 -F {log}"],
        "pippin.service": [f"journalctl --unit pippin --no-pager --lines 200{more}" for more in ("", " --follow")],
    }
    assert machine.changes() == expected[machine.manager.file.name]


def test_what_the_manager_refuses_is_told(machine: Machine, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = machine.manager.status[0]
    machine.program(
        tool, 'case $1 in enable) echo "Bootstrap failed: 5" >&2; exit 5;; daemon-reload) ;; *) exit 3;; esac\n'
    )
    assert main(["service", "install", "--user", me(), "--config", str(config)]) == 1
    assert "failed: Bootstrap failed: 5." in capsys.readouterr().err
    assert not machine.manager.file.exists()


def test_print_changes_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    assert main(["service", "install", "--print", "--user", me()]) == 0
    assert capsys.readouterr().out == machine.manager.definition(command.service_of(me(), None))
    assert machine.changes() == []


@pytest.mark.parametrize("asked", ["install", "uninstall"])
def test_only_root_may(
    asked: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.manager.file.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    monkeypatch.setenv("SUDO_USER", me())
    assert main(["service", asked]) == 1
    said = capsys.readouterr().err
    assert f"sudo {Path(sys.executable).with_name('cluster')} service {asked}" in said
    assert machine.changes() == []


def test_users(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "install", "--user", "no-such-user"]) == 1
    assert "no user no-such-user" in capsys.readouterr().err
    assert main(["service", "install", "--user", me(), "--config", "~no-such-user/config.toml"]) == 1
    assert "no home of the user in ~no-such-user/config.toml" in capsys.readouterr().err
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    assert main(["service", "install"]) == 1
    assert "Name another user with --user NAME" in capsys.readouterr().err
    monkeypatch.setenv("SUDO_USER", "daemon")
    assert command.service_of(None, None).user == "daemon"


def test_a_system_without_a_manager(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    assert main(["service", "install", "--user", me()]) == 1
    assert "can't install a service here" in capsys.readouterr().err
