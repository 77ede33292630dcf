#!/usr/bin/env python3
"""Measures Pippin. `scripts/bench.py COMMAND --help` explains a command; docs/performance.md has the figures.

    scripts/bench.py serve --base-url http://localhost:52415/v1
    scripts/bench.py one
    scripts/bench.py ring --preset 25m
    scripts/bench.py many
    scripts/bench.py agent
    scripts/bench.py edit --model DIR
    scripts/bench.py unequal
    scripts/bench.py gateway
    scripts/bench.py control
    scripts/bench.py recover
    scripts/bench.py soak
    scripts/bench.py timeline

Run it with the project's own Python: .venv/bin/python scripts/bench.py.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

import agent
import control
import edit
import gateway
import many
import one
import recover
import ring
import serve
import soak
import timeline
import unequal

COMMANDS = {
    "serve": serve,
    "one": one,
    "ring": ring,
    "many": many,
    "agent": agent,
    "edit": edit,
    "unequal": unequal,
    "gateway": gateway,
    "control": control,
    "recover": recover,
    "soak": soak,
    "timeline": timeline,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
