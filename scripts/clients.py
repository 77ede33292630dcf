"""Runs real clients, each in its own temporary environment, against a node with the built-in model.

    .venv/bin/python scripts/clients.py                     all of them, against one node
    .venv/bin/python scripts/clients.py --nodes 3 openai    one of them, against three nodes that split the model
    .venv/bin/python scripts/clients.py --url http://localhost:52415/v1 --environments /tmp/clients

Each folder of tests/clients is a client: its packages (requirements.txt, no-deps.txt, package.json) and its checks
(check.py, *.mjs). Coding agents use a second model, of random weights. It needs uv (scripts/install dev), and npm and Node.js for the clients in JavaScript. Packages come from the registries that uv and npm are configured for.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / "tests" / "clients"
UV = str(ROOT / ".venv" / "bin" / "uv")
MODEL_FILES = ROOT / "node" / "builtin" / "pippin-demo"
AGENT_MODEL = "tiny-qwen3"
"""Preset of scripts/make_model.py; coding agents need a context of 40,000 tokens."""
PICTURE_MODEL = "tiny-qwen2.5-vl"
"""Preset that takes pictures."""
STARTS = ("check", "package")
"""Stems of the files that mark a folder as a client's."""
START_S = 300.0
"""Nodes on a busy machine take minutes for three models."""
INSTALL_S = 1200.0
CHECK_S = 600.0


@dataclass(frozen=True, slots=True)
class Result:
    client: str
    version: str
    passed: int
    failures: dict[str, str]
    """The reason of each failure, by the check's name."""


# --- nodes ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_nodes(count: int, directory: Path) -> Iterator[str]:
    """Start nodes; yields the API's URL of one of them, with /v1."""
    cluster = f"clients-{uuid.uuid4().hex[:12]}"
    command = [str(ROOT / ".venv" / "bin" / "node"), "--host", "127.0.0.1", "--cluster", cluster, "--api-port", "0"]
    models = directory / "models"
    command += ["--models-dir", str(models), "--model", MODEL_FILES.name]
    for preset in (AGENT_MODEL, PICTURE_MODEL):
        make = [str(ROOT / "scripts" / "make_model.py"), "--preset", preset, "--out", str(models / preset)]
        _run(sys.executable, *make)
        command += ["--model", preset]
    command += ["--stages", str(count), "--context", "40960"]
    logs = [directory / f"node-{number}.log" for number in range(count)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, log in enumerate(logs):
            with log.open("wb") as file:
                more = ["--name", f"n{number}", "--data-dir", str(directory / f"data-{number}")]
                processes.append(subprocess.Popen([*command, *more], stdout=file, stderr=file))
        yield f"{_ready(logs[-1])}/v1"
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(30)


def _ready(log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := re.search(r"API on (http://\S+)/v1", log.read_text(errors="replace")):
            with urllib.request.urlopen(f"{found[1]}/cluster/status", timeout=10) as response:  # noqa: S310 our own
                if json.load(response)["state"] == "ready":
                    return found[1]
        time.sleep(0.2)
    raise SystemExit(f"No node is ready after {START_S:.0f} s; {log} ends with:\n{log.read_text()[-2000:]}")


# --- environments -----------------------------------------------------------------------------------------------------


def install(client: Path, environment: Path) -> list[str]:
    """Make the client's environment unless it exists; return the beginning of a command that runs in it."""
    if (client / "package.json").exists():
        shutil.copytree(client, environment, dirs_exist_ok=True)
        if not (environment / "node_modules").exists():
            _run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", cwd=environment)
        return [sys.executable] if (client / "check.py").exists() else ["node"]
    python = str(environment / "bin" / "python")
    if not Path(python).exists():
        _run(UV, "venv", "--python", sys.executable, str(environment))
    for name, options in (("requirements.txt", ()), ("no-deps.txt", ("--no-deps",))):
        if (client / name).exists() and (client / name).read_text().strip():
            _run(UV, "pip", "install", "--python", python, *options, "--requirement", str(client / name))
    return [python]


def _refuse_without_tools(chosen: Collection[Path]) -> None:
    """Exit unless the programs that make the clients' environments are here."""
    if not Path(UV).exists():
        raise SystemExit(f"{UV} is missing: run scripts/install dev")
    if any((client / "package.json").exists() for client in chosen) and not (
        shutil.which("npm") and shutil.which("node")
    ):
        raise SystemExit("npm and Node.js are missing, which the JavaScript clients need: install them, or name others")


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def version(client: Path, environment: Path) -> str:
    """Return the version of the first package in the client's requirements, or of all for npm."""
    if (client / "package.json").exists():
        wanted = json.loads((client / "package.json").read_text())["dependencies"]
        return ", ".join(f"{name} {number}" for name, number in wanted.items())
    for name in ("no-deps.txt", "requirements.txt"):
        lines = (client / name).read_text().split() if (client / name).exists() else []
        if lines:
            package = re.split(r"[\[=<>]", lines[0])[0]
            folder = next((environment / "lib").glob("python*")) / "site-packages"
            (found, *_) = importlib.metadata.distributions(name=package, path=[str(folder)])
            return f"{package} {found.version}"
    return "-"


# --- checks -----------------------------------------------------------------------------------------------------------


def check(name: str, client: Path, environment: Path, given: dict[str, str]) -> list[Result]:
    runner = install(client, environment)
    scripts = [client / "check.py"]
    if runner == ["node"]:
        scripts = sorted(file for file in environment.glob("*.mjs") if file.stem != "harness")
    results = []
    for script in scripts:
        shown = f"{name}/{script.stem}" if len(scripts) > 1 else name
        more = {"CLIENT_ENVIRONMENT": str(environment)}
        results.append(_ask(shown, version(client, environment), [*runner, str(script)], given | more))
    return results


def _ask(name: str, told: str, command: list[str], given: dict[str, str]) -> Result:
    environment = {**os.environ, **given, "PYTHONPATH": str(CLIENTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CHECK_S, check=False)
    verdicts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    failures = {verdict["check"]: verdict["why"] for verdict in verdicts if verdict["why"]}
    passed = len(verdicts) - len(failures)
    if not verdicts or (done.returncode and not failures):
        failures["start"] = done.stderr[-1000:]
    return Result(name, told, passed, failures)


def show(result: Result) -> None:
    state = "ok" if not result.failures else "FAILED"
    print(f"{state:7} {result.client:18} {result.passed:2} checks  {result.version}", flush=True)
    for name, why in result.failures.items():
        print(f"          {name}: {why[:300]}", flush=True)


def _options(clients: Collection[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(clients)} (default: all)")
    parser.add_argument("--nodes", type=int, default=1, help="how many nodes split the model (default 1)")
    parser.add_argument(
        "--url",
        help=f"ask this API, which serves pippin-demo (and {AGENT_MODEL}, {PICTURE_MODEL}), instead of starting nodes",
    )
    kept = "keep the clients' environments here, and use those there are"
    parser.add_argument("--environments", type=Path, metavar="DIR", help=kept)
    parser.add_argument("--org-ai", type=Path, metavar="DIR", help="run Emacs with the org-ai in this folder, too")
    options = parser.parse_args()
    if unknown := set(options.clients) - set(clients):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    return options


def results(options: argparse.Namespace, folders: dict[str, Path], directory: Path) -> Iterator[Result]:
    """Yield the results of all checks, one after the other."""
    _refuse_without_tools([folders[name] for name in options.clients or folders])
    known = directory / "known.json"
    command = [sys.executable, str(CLIENTS / "known.py"), str(MODEL_FILES)]
    known.write_bytes(subprocess.run(command, capture_output=True, timeout=CHECK_S, check=True).stdout)
    with contextlib.nullcontext(options.url) if options.url else running_nodes(options.nodes, directory) as url:
        given = {"CLIENT_URL": url, "CLIENT_KNOWN": str(known), "CLIENT_MODEL_FILES": str(MODEL_FILES)}
        given |= {"CLIENT_AGENT_MODEL": AGENT_MODEL, "CLIENT_PICTURE_MODEL": PICTURE_MODEL}
        for name in options.clients or folders:
            yield from check(name, folders[name], (options.environments or directory / "environments") / name, given)
        if options.org_ai:
            command = ["emacs", "--batch", "-L", str(options.org_ai), "-l", str(CLIENTS / "org_ai" / "check.el")]
            yield _ask("org_ai in Emacs", str(options.org_ai), command, given)


def main() -> None:
    folders = {file.parent.name: file.parent for file in sorted(CLIENTS.glob("*/*")) if file.stem in STARTS}
    options = _options(folders)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="pippin-clients-") as directory:
        for result in results(options, folders, Path(directory)):
            show(result)
            failed += bool(result.failures)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
