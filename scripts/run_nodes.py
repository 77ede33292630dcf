"""Starts one node with the built-in model, or several on this machine that split it, and prints how to use them."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from node.cli.client import Api, StatusFailed
from node.host.api_keys import read_keys

BIN = Path(sys.executable).parent
API_PORT = 52415
MODEL = "pippin-demo"
START_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__, epilog="Other options go to `node`.")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes on this machine (default: 1)")
    parser.add_argument("--stages", type=int, metavar="N", help="nodes that share one copy of a model (default: all)")
    parser.add_argument("--api-port", type=int, default=API_PORT, metavar="PORT", help="of the first node")
    parser.add_argument("--api-key-file", metavar="FILE", help="file of accepted API keys, one per line")
    options, rest = parser.parse_known_args()
    stages = min(options.stages or options.nodes, options.nodes)
    try:
        key = read_keys(Path(options.api_key_file))[0] if options.api_key_file else ""
    except (OSError, ValueError) as error:
        parser.error(f"--api-key-file: {error}")
    guard = ["--api-key-file", options.api_key_file] if key else []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also if a shell started this in the background
    with tempfile.TemporaryDirectory(prefix="pippin-") as directory:
        processes = start(options.nodes, stages, options.api_port, [*guard, *rest], Path(directory))
        try:
            status = wait_ready(Api("http", "127.0.0.1", options.api_port, key), options.nodes, stages, processes)
            if status:
                print(greeting(status, options.api_port, guard), flush=True)
                processes[0].wait()
            return stop(processes) if status else max(stop(processes), 1)
        except KeyboardInterrupt:
            return stop(processes)


def start(count: int, stages: int, api_port: int, rest: list[str], directory: Path) -> list[subprocess.Popen[bytes]]:
    if count == 1:
        return [launch(["--model", MODEL, "--api-port", str(api_port), *rest])]
    cluster = f"local-{os.getpid()}"
    return [
        launch(
            [
                *("--name", f"node-{number}", "--cluster", cluster, "--host", "127.0.0.1"),
                *("--data-dir", str(directory / f"node-{number}")),
                *("--api-port", str(api_port if number == 1 else 0)),
                *("--model", MODEL, "--stages", str(stages), *rest),
            ]
        )
        for number in range(1, count + 1)
    ]


def launch(arguments: list[str]) -> subprocess.Popen[bytes]:
    # A process group of its own: Ctrl-C reaches only this script, which passes it on once.
    return subprocess.Popen([str(BIN / "node"), *arguments], start_new_session=True)


def wait_ready(api: Api, count: int, stages: int, processes: list[subprocess.Popen[bytes]]) -> dict[str, Any] | None:
    """Return the status once all nodes are here and hold their layers; None when a node ended or time ran out."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        with contextlib.suppress(StatusFailed):
            status = api.status(timeout=2)
            rings = [ring for model in status["models"] for ring in model["rings"]]
            whole = all(ring["state"] == "ready" and len(ring["stages"]) >= stages for ring in rings)
            if status["state"] == "ready" and len(status["nodes"]) == count and whole:
                return status
        time.sleep(0.2)
    print("The node did not start; see above.", file=sys.stderr)
    return None


def greeting(status: dict[str, Any], port: int, guard: list[str]) -> str:
    """Return the text to print. `guard`: options of `cluster` that give it an API key, if the nodes need one."""
    names = {node["id"]: node["name"] for node in status["nodes"]}
    lines = ["", f"Pippin is ready at http://localhost:{port}/v1", ""]
    for model in status["models"]:
        for number, ring in enumerate(model["rings"], start=1):
            copy = f", ring {number}" if len(model["rings"]) > 1 else ""
            lines += [
                f"  {model['id']}{copy}: layers {stage['start']}-{stage['end'] - 1} on {names[stage['node']]}"
                for stage in ring["stages"]
            ]
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]})
    header = ' -H "Authorization: Bearer KEY"' if guard else ""
    lines += ["", "Try:", f"  curl http://localhost:{port}/v1/chat/completions{header} -d '{body}'"]
    api = "" if port == API_PORT else f" --api http://localhost:{port}"
    lines += [" ".join([f"  {os.path.relpath(BIN)}/cluster status{api}", *guard]), "", "Ctrl-C stops it.", ""]
    return "\n".join(lines)


def stop(processes: list[subprocess.Popen[bytes]]) -> int:
    """Drain the nodes on the first Ctrl-C, end them on the second."""
    for _ in range(2):
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        try:
            return max(abs(process.wait()) for process in processes)
        except KeyboardInterrupt:
            continue
    for process in processes:
        process.kill()
    return 130


if __name__ == "__main__":
    sys.exit(main())
