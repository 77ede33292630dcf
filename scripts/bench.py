#!/usr/bin/env python3
"""Measures Pippin. `scripts/bench.py COMMAND --help` explains a command; docs/performance.md has the figures.

`--json` writes a run into docs/bench/COMMAND.json, `--json VARIANT` into docs/bench/COMMAND-VARIANT.json; then draw the table
of docs/performance.md from it: scripts/pages.py.

    scripts/bench.py serve --base-url http://localhost:52415/v1
    scripts/bench.py one
    scripts/bench.py pictures
    scripts/bench.py ring --preset 25m
    scripts/bench.py many
    scripts/bench.py agent
    scripts/bench.py gateway
    scripts/bench.py control
    scripts/bench.py recover
    scripts/bench.py soak
    scripts/bench.py guesses

Run it with the project's own Python: .venv/bin/python scripts/bench.py.
"""

import argparse
import datetime as dt
import json
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

import agent
import control
import figures
import gateway
import guesses
import many
import one
import pictures
import recover
import ring
import serve
import soak

COMMANDS = {
    "serve": serve,
    "one": one,
    "pictures": pictures,
    "ring": ring,
    "many": many,
    "agent": agent,
    "gateway": gateway,
    "control": control,
    "recover": recover,
    "soak": soak,
    "guesses": guesses,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.add_argument("--json", nargs="?", const="", metavar="VARIANT", help="write the run into docs/bench")
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    measured_on = {
        "command": shlex.join(["bench.py", *sys.argv[1:]]),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": figures.commit(),
        "machine": figures.machine(),
        "versions": figures.versions(),
    }
    print(json.dumps(measured_on))
    rows = options.run(options)
    if options.json is not None:
        name = "-".join(filter(None, (options.command, options.json)))
        path = figures.ROOT / "docs" / "bench" / f"{name}.json"
        path.write_text(json.dumps({**measured_on, "rows": rows}, indent=2) + "\n")
        print(f"Written to {path}.")


if __name__ == "__main__":
    main()
