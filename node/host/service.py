"""The node as a service that the system starts at boot, and again when it ends: for launchd and for systemd.

On a Mac it is a LaunchDaemon: macOS does not let a LaunchAgent use the local network (Apple's TN3179).
"""

import plistlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.parsers.expat import ExpatError

NAME = "pippin"
RESTART_S = 10
"""Seconds between the end of a node and its next start; launchd's own default."""
STOP_S = 45
"""Seconds after SIGTERM until the system kills a node, which finishes its answers for 30 s and leaves within 5 s."""

HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_ENDPOINT")
"""Variables of a user's shell that say where the hub's models and token are. The system does not read them."""

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
    hub: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of HUB_VARIABLES that the user's shell has."""

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), **self.hub}

    @property
    def hub_cache(self) -> Path:
        """Where the node finds models of the hub, and keeps those that it fetches."""
        return Path(self.hub.get("HF_HUB_CACHE") or self._hub_home / "hub")

    @property
    def token(self) -> Path:
        """Where the node finds the hub's token, as `hf auth login` keeps it."""
        return Path(self.hub.get("HF_TOKEN_PATH") or self._hub_home / "token")

    @property
    def _hub_home(self) -> Path:
        return Path(self.hub.get("HF_HOME") or self.home / ".cache" / "huggingface")

    def __post_init__(self) -> None:
        """Raises ValueError for a control character, which could end a line of the service's file."""
        for text in (self.user, *self.hub.values(), *map(str, (self.program, self.home, self.config or ""))):
            if text and not text.isprintable():
                raise ValueError(f"{text!a} has a character that can't be printed")

    @property
    def arguments(self) -> Command:
        return (str(self.program), *(("--config", str(self.config)) if self.config else ()))


class Installed(NamedTuple):
    """What a service's file says of it."""

    user: str
    arguments: list[str]
    environment: dict[str, str]

    @property
    def config(self) -> Path | None:
        at = self.arguments.index("--config") + 1 if "--config" in self.arguments else 0
        return Path(self.arguments[at]) if at else None


class State(NamedTuple):
    is_running: bool
    text: str


@dataclass(frozen=True, slots=True)
class Manager:
    """A system's manager of services: the file that describes a service to it, and the commands that it takes."""

    file: Path
    definition: Callable[[Service], str]
    """The content of the file."""
    read: Callable[[str], Installed]
    """Reads that content. Raises ValueError for another."""
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
    log_files: str = ""
    """Pattern of the service's own log, in the user's home; empty if the system keeps it."""
    under_way: tuple[int, ...] = ()
    """Exit codes of commands by which it says that it is still at what it was told before."""
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


def _of_launch_daemon(text: str) -> Installed:
    try:
        keys = plistlib.loads(text.encode())
        return Installed(keys["UserName"], keys["ProgramArguments"], keys["EnvironmentVariables"])
    except (plistlib.InvalidFileException, ExpatError, KeyError, TypeError) as error:
        raise ValueError(f"it is no service: {error!r}") from error


def _unit(service: Service) -> str:
    program, *options = service.arguments
    command = [_quoted(program), *(_quoted(option.replace("$", "$$")) for option in options)]
    environment = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in service.hub.items())
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


def _of_unit(text: str) -> Installed:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(User|ExecStart|Environment)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).extend(word.replace("%%", "%") for word in shlex.split(value))
    if not found.get("User") or not found.get("ExecStart"):
        raise ValueError("it is no service")
    environment = dict(each.split("=", 1) for each in found.get("Environment", ()))
    return Installed(found["User"][0], [word.replace("$$", "$") for word in found["ExecStart"]], environment)


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
    read=_of_launch_daemon,
    start=(("launchctl", "enable", f"system/{NAME}"), ("launchctl", "bootstrap", "system", str(_PLIST))),
    stop=("launchctl", "bootout", f"system/{NAME}"),
    loaded=("launchctl", "print", f"system/{NAME}"),
    after_removal=(),
    status=("launchctl", "print", f"system/{NAME}"),
    state=_state_of_launchd,
    logs=_tail,
    log_files=f"Library/Logs/{NAME}.log*",
    under_way=(5, 36, 37),  # a bootout that takes its time says 36, and a bootstrap soon after it 5 or 37
    guarded=("~/Desktop", "~/Documents", "~/Downloads", "~/Library/Mobile Documents", "/Volumes"),
)
SYSTEMD = Manager(
    file=Path(f"/etc/systemd/system/{NAME}.service"),
    definition=_unit,
    read=_of_unit,
    start=(("systemctl", "daemon-reload"), ("systemctl", "enable", "--now", NAME)),
    stop=("systemctl", "disable", "--now", NAME),
    loaded=("systemctl", "is-active", "--quiet", NAME),
    after_removal=(("systemctl", "daemon-reload"),),
    status=("systemctl", "show", NAME, "--property=ActiveState,SubState,MainPID,ExecMainStatus"),
    state=_state_of_systemd,
    logs=_journal,
)
