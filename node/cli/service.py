"""`cluster service`: has this machine's system start a node at boot. It asks no node over HTTP."""

import getpass
import os
import platform
import pwd
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from node.core.errors import PippinError
from node.host.mac_program import full_disk_access_hint
from node.host.service import HUB_VARIABLES, LAUNCHD, NAME, STOP_S, SYSTEMD, Command, Manager, Service

EXIT_NOT_INSTALLED, EXIT_NOT_RUNNING = 3, 4
NEEDED_FILES = ("data-dir", "secret-file", "api-key-file")
"""Options of paths without which a node does not start."""


class ServiceFailed(PippinError):
    """The system's manager of services is missing or refuses, or the caller may not change services."""

    code = "service_failed"


def act(
    action: str, *, user: str | None = None, config: str | None = None, prints: bool = False, follow: bool = False
) -> int:
    """Do what a command of `cluster service` says. Returns the exit code. Raises ServiceFailed."""
    manager = LAUNCHD if platform.system() == "Darwin" else SYSTEMD
    if shutil.which(manager.status[0]) is None:
        raise ServiceFailed(
            f"This system has no {manager.status[0]}, so Pippin can't install a service here.",
            hint=f"Have its own manager of services start {_program('node')}.",
        )
    if action == "install":
        if not prints:
            _require_root("install")
        service = service_of(user, config)
        if prints:
            print(manager.definition(service), end="")
            return 0
        install(manager, service)
        return 0
    if not manager.file.exists():
        print(f"cluster: there is no service {NAME}. Install it with `cluster service install`.", file=sys.stderr)
        return EXIT_NOT_INSTALLED
    if action == "uninstall":
        _require_root("uninstall")
        left = _left(manager)
        _stop(manager)
        manager.file.unlink(missing_ok=True)
        for command in manager.after_removal:
            _succeed(command, manager)
        print("\n".join(["The service is gone.", *(["Still there:"] if left else []), *left]))
        return 0
    if action == "logs":
        return subprocess.run(manager.logs(manager.file, follow), check=False).returncode  # noqa: S603
    state = manager.state(_call(manager.status).stdout)
    print(f"{NAME}   {state.text}   {manager.file}")
    return 0 if state.is_running else EXIT_NOT_RUNNING


def service_of(user: str | None, config: str | None) -> Service:
    """The service of the `node` beside this program. Raises ServiceFailed."""
    name = user or os.environ.get("SUDO_USER") or getpass.getuser()
    if name == "root" and not user:
        raise ServiceFailed("The node would run as root.", hint="Name another user with --user NAME.")
    try:
        home = Path(pwd.getpwnam(name).pw_dir)
    except KeyError:
        raise ServiceFailed(f"There is no user {name} on this machine.") from None
    try:
        file = Path(config).expanduser().absolute() if config else None
    except RuntimeError:
        raise ServiceFailed(f"There is no home of the user in {config}.", hint="Write the file's whole path.") from None
    try:
        return Service(_program("node"), name, home, file, _hub_variables())
    except ValueError as error:
        raise ServiceFailed(f"The service can't be written: {error}.", hint="Rename it.") from error


def install(manager: Manager, service: Service) -> None:
    """Start the service, and say where it looks for the hub's models and token: it has no other variables of the user's
    shell. One that runs already is replaced. Raises ServiceFailed.
    """
    _check_folders(manager, service, _check_options(service))
    _stop(manager)
    try:
        manager.file.write_text(manager.definition(service), encoding="utf-8")
        manager.file.chmod(0o644)  # launchd takes no file that others may write
    except OSError as error:
        raise ServiceFailed(f"{manager.file} can't be written: {error.strerror}.") from error
    try:
        for command in manager.start:
            _succeed(command, manager)
    except ServiceFailed:
        manager.file.unlink()  # else the next boot would try again what failed
        raise
    print(f"A node runs now and at each boot, as {service.user}. `cluster service logs` shows what it says.")
    print(f"Models of the hub: {service.hub_cache}")
    if service.token.is_file():
        print(f"Token for gated models: {service.token}")
    else:
        print(f"Token for gated models: none. `hf auth login` as {service.user} puts one into {service.token}.")
    if "SUDO_USER" in os.environ and not service.hub:
        print("If your shell sets HF_HOME, install it again with: sudo --preserve-env=HF_HOME")


def _hub_variables() -> dict[str, str]:
    """Those of HUB_VARIABLES that this process has."""
    return {name: os.environ[name] for name in HUB_VARIABLES if os.environ.get(name)}


def _left(manager: Manager) -> list[str]:
    """Lines about the files that stay when the service goes; of those that are not there, none."""
    try:
        installed = manager.read(manager.file.read_text(encoding="utf-8"))
        home = Path(installed.environment.get("HOME") or pwd.getpwnam(installed.user).pw_dir)
        config = installed.config or home / ".config" / "pippin" / "config.toml"
        hub = Service(Path(installed.arguments[0]), installed.user, home, hub=installed.environment).hub_cache
    except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError):  # a person may have changed it
        return []
    data = home / ".pippin"
    with suppress(OSError, ValueError):
        data = home / Path(str(tomllib.loads(config.read_text()).get("data-dir", data)).replace("~", str(home), 1))
    logs = home.glob(manager.log_files) if manager.log_files else ()
    places = [(data, "the node's identity, models from other nodes, KV"), (config, "its options")]
    places += [*((log, "its log") for log in logs), (hub, "models of the hub, for other programs, too")]
    places.append((home / ".cache" / "pippin", "the model of `scripts/run --real`"))
    return [f"  {path}   {what}" for path, what in places if path.exists()]


def _require_root(command: str) -> None:
    if os.geteuid() != 0:
        kept = f" --preserve-env={','.join(_hub_variables())}" if _hub_variables() else ""
        raise ServiceFailed(
            "Only root may change the services of a machine.",
            hint=f"Run: sudo{kept} {_program('cluster')} service {command}",  # sudo has a PATH of its own
        )


def _program(name: str) -> Path:
    """A program of this installation."""
    return Path(sys.executable).with_name(name)


def _check_options(service: Service) -> dict[str, Any]:
    """Let the node read its configuration as the service will: with a mistake in it, it would start and end for ever.

    Returns the options as of a configuration file. Raises ServiceFailed.
    """
    command = (*service.arguments, "--print-config")
    environment = service.environment | {"PATH": os.defpath}
    try:
        done = _call(command, env=environment, cwd="/", timeout=30, **_identity(service.user))
    except (OSError, subprocess.SubprocessError) as error:
        raise ServiceFailed(f"{service.program} can't be started as {service.user}: {error}.") from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        said = last.removeprefix("node: ").removesuffix(" See node --help").rstrip(".")
        raise ServiceFailed(f"The node would not start: {said}.", hint="Nothing has been changed.")
    return tomllib.loads(done.stdout)


def _check_folders(manager: Manager, service: Service, options: dict[str, Any]) -> None:
    """Find what the node may read in this terminal, but not as a service. Warns of models; raises ServiceFailed for
    what it can't start without.
    """
    given = [options[name] for name in NEEDED_FILES if name in options]
    for path in map(Path, (service.program, *([service.config] if service.config else ()), *given)):
        if manager.guards(path, service.home):
            raise ServiceFailed(
                f"{path} is in a folder that macOS keeps from services, so the node would not start.",
                hint=f"Move it elsewhere, such as to {service.home / 'pippin'}.",
            )
    models = [*options.get("models-dir", ()), *options.get("model", ()), service.hub_cache]
    for path in map(Path, models):
        if manager.guards(path, service.home):
            print(
                f"cluster: macOS keeps {path} from services until you allow it. {full_disk_access_hint()}",
                file=sys.stderr,
            )


def _identity(user: str) -> dict[str, Any]:
    """What a program must be started with to be this user's, as the service will be: root's groups may read more.

    macOS takes 16 groups at most, and an administrator easily has more, such as one for each shared folder.
    """
    known = pwd.getpwnam(user)
    if known.pw_uid == os.getuid():
        return {}
    groups = dict.fromkeys((known.pw_gid, *os.getgrouplist(user, known.pw_gid)))
    most = os.sysconf("SC_NGROUPS_MAX")
    return {"user": known.pw_uid, "group": known.pw_gid, "extra_groups": list(groups)[:most]}


def _stop(manager: Manager) -> None:
    """Stop the service if it is loaded, and wait for its end: a node first finishes its answers."""
    deadline = time.monotonic() + STOP_S + 5
    if _call(manager.loaded).returncode != 0:
        return
    done = _call(manager.stop)
    if done.returncode not in (0, *manager.under_way):
        raise _failed(manager.stop, done)
    while _call(manager.loaded).returncode == 0:
        if time.monotonic() > deadline:
            raise ServiceFailed(f"The node that runs did not stop within {STOP_S + 5} s.", hint="Try again.")
        time.sleep(0.2)


def _succeed(command: Command, manager: Manager) -> None:
    """Have a command succeed, which the end of the service that ran before may delay."""
    deadline = time.monotonic() + 10.0
    while (done := _call(command)).returncode in manager.under_way and time.monotonic() < deadline:
        if _call(manager.loaded).returncode == 0:  # it has started all the same
            return
        time.sleep(0.2)
    if done.returncode != 0:
        raise _failed(command, done)


def _failed(command: Command, done: subprocess.CompletedProcess[str]) -> ServiceFailed:
    said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
    return ServiceFailed(f"`{' '.join(command)}` failed: {said}.")


def _call(command: Command, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)  # noqa: S603
