"""The node as a service that the system starts at boot, and again when it ends: for launchd and for systemd.

On a Mac it is a LaunchDaemon: macOS does not let a LaunchAgent use the local network (Apple's TN3179).
"""

import plistlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NAME = "pippin"
RESTART_S = 10
"""Seconds between the end of a node and its next start; launchd's own default."""
STOP_S = 45
"""Seconds after SIGTERM until the system kills a node, which finishes its answers for 30 s and leaves within 5 s."""

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    program: Path
    """The `node` to start."""
    user: str
    """Runs the node, and owns its data directory, models and log."""
    home: Path
    """Of the user."""
    config: Path | None = None
    """The node's configuration file; None: the user's default one."""
    hf_home: str = ""
    """HF_HOME of the user's shell, which the system does not read; empty if it has none."""

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home)} | ({"HF_HOME": self.hf_home} if self.hf_home else {})

    @property
    def hub_cache(self) -> Path:
        """Where the node finds models of the hub, and keeps those that it fetches."""
        return Path(self.hf_home) if self.hf_home else self.home / ".cache" / "huggingface"

    def __post_init__(self) -> None:
        """Raises ValueError for a control character, which could end a line of the service's file."""
        for text in (self.user, self.hf_home, *map(str, (self.program, self.home, self.config or ""))):
            if text and not text.isprintable():
                raise ValueError(f"{text!a} has a character that can't be printed")

    @property
    def arguments(self) -> Command:
        return (str(self.program), *(("--config", str(self.config)) if self.config else ()))


class State(NamedTuple):
    is_running: bool
    text: str


@dataclass(frozen=True, slots=True)
class Manager:
    """A system's manager of services: the file that describes a service to it, and the commands that it takes."""

    file: Path
    definition: Callable[[Service], str]
    """The content of the file."""
    start: tuple[Command, ...]
    """Start the service now and at each boot."""
    stop: Command
    """Stop it, now and at each boot."""
    loaded: Command
    """Succeeds while the service runs or stops."""
    after_removal: tuple[Command, ...]
    status: Command
    state: Callable[[str], State]
    """Reads the output of `status`."""
    logs: Callable[[Path, bool], Command]
    """Shows the end of the log, given the file above, and goes on if true."""
    guarded: tuple[str, ...] = ()
    """Folders that what it starts may read only once the user has allowed it. `~` is the user's home."""

    def guards(self, path: Path, home: Path) -> bool:
        """Whether the path leads into a guarded folder of the user with this home. The case of letters does not matter."""
        asked = _of_home(str(path), home).resolve()
        guarded = [_of_home(folder, home.resolve()) for folder in self.guarded]
        return any(Path(str(asked).casefold()).is_relative_to(str(folder).casefold()) for folder in guarded)


def _of_home(text: str, home: Path) -> Path:
    """The path that the node means by this: it starts in `/`."""
    return home / text[2:] if text.startswith("~/") else Path("/", text)


def _launch_daemon(service: Service) -> str:
    log = str(service.home / "Library" / "Logs" / f"{NAME}.log")
    keys = {
        "Label": NAME,
        "ProgramArguments": [*service.arguments, "--log-file", log],
        "UserName": service.user,
        "EnvironmentVariables": service.environment,
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Interactive",  # else macOS may slow it down as work in the background
        "StandardErrorPath": log,  # what is said before the log begins
    }
    return plistlib.dumps(keys, sort_keys=False).decode()


def _unit(service: Service) -> str:
    program, *options = service.arguments
    command = [_quoted(program), *(_quoted(option.replace("$", "$$")) for option in options)]
    environment = f"Environment={_quoted(f'HF_HOME={service.hf_home}')}\n" if service.hf_home else ""
    return f"""\
[Unit]
Description=Pippin node
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User={service.user}
{environment}ExecStart={" ".join(command)}
Restart=always
RestartSec={RESTART_S}
KillMode=mixed
TimeoutStopSec={STOP_S}

[Install]
WantedBy=multi-user.target
"""


def _quoted(argument: str) -> str:
    """As in ExecStart= of systemd, which expands % also within quotes; in all but the program also $."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text, re.ASCII) else f'"{text}"'


def _state_of_launchd(shown: str) -> State:
    """Read `launchctl print`, which is empty if the service is not loaded."""
    found = dict(re.findall(r"^\t(state|pid|runs|last exit code) = (.+)$", shown, re.MULTILINE))
    is_running = found.get("state") == "running"
    return State(is_running, _text(found.get("state", "stopped"), found.get("pid"), found.get("last exit code")))


def _state_of_systemd(shown: str) -> State:
    """Read `systemctl show`."""
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    state, pid = found.get("ActiveState", "stopped"), found.get("MainPID", "0")
    ended = found.get("ExecMainStatus") if pid == "0" else None
    return State(state == "active", _text(found.get("SubState", state), pid if pid != "0" else None, ended))


def _text(state: str, pid: str | None, exit_code: str | None) -> str:
    process = f", process {pid}" if pid else ""
    ended = f", last exit code {exit_code}" if exit_code and not pid else ""
    return f"{state}{process}{ended}"


def _tail(file: Path, follow: bool) -> Command:
    with file.open("rb") as definition:
        log = plistlib.load(definition)["StandardErrorPath"]
    return ("tail", "-n", "200", *(("-F",) if follow else ()), log)


def _journal(_: Path, follow: bool) -> Command:
    return ("journalctl", "--unit", NAME, "--no-pager", "--lines", "200", *(("--follow",) if follow else ()))


_PLIST = Path(f"/Library/LaunchDaemons/{NAME}.plist")
LAUNCHD = Manager(
    file=_PLIST,
    definition=_launch_daemon,
    start=(("launchctl", "enable", f"system/{NAME}"), ("launchctl", "bootstrap", "system", str(_PLIST))),
    stop=("launchctl", "bootout", f"system/{NAME}"),
    loaded=("launchctl", "print", f"system/{NAME}"),
    after_removal=(),
    status=("launchctl", "print", f"system/{NAME}"),
    state=_state_of_launchd,
    logs=_tail,
    guarded=("~/Desktop", "~/Documents", "~/Downloads", "~/Library/Mobile Documents", "/Volumes"),
)
SYSTEMD = Manager(
    file=Path(f"/etc/systemd/system/{NAME}.service"),
    definition=_unit,
    start=(("systemctl", "daemon-reload"), ("systemctl", "enable", "--now", NAME)),
    stop=("systemctl", "disable", "--now", NAME),
    loaded=("systemctl", "is-active", "--quiet", NAME),
    after_removal=(("systemctl", "daemon-reload"),),
    status=("systemctl", "show", NAME, "--property=ActiveState,SubState,MainPID,ExecMainStatus"),
    state=_state_of_systemd,
    logs=_journal,
)
