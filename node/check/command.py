"""The command line of `node --check`."""

import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click

from node import __version__
from node.check import parts, sizes
from node.check.processes import compute
from node.check.report import Report
from node.core.usage import Command, run


def main(arguments: Sequence[str]) -> int:
    """Check this machine and write the report. Returns the exit code: 1 if something is not as expected."""
    return int(run(check, arguments))


@click.command("node --check", cls=Command)
@click.option("--quick", is_flag=True, help="small models and few tokens, on 127.0.0.1: a minute")
@click.option(
    "--out",
    metavar="FILE",
    type=Path,
    default=Path("pippin-check.txt"),
    help="file to write (default: pippin-check.txt)",
)
def check(quick: bool, out: Path) -> int:
    """Prove and measure what depends on this machine, in about a quarter of an hour: split models, speed and memory on its
    device, two nodes, its network. Writes a report to attach to an issue. On a Mac save your work before: its last part is a
    load under which some Macs have restarted.
    """
    try:
        file = out.open("w", encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{out} can't be written: {error.strerror}") from error
    with file, tempfile.TemporaryDirectory(prefix="pippin-check-") as folder:
        report = Report(lambda text: _say(text, file))
        try:
            began = time.time()
            form = " --quick" if quick else ""
            report.section(f"Pippin {__version__}, node --check{form}, {time.strftime('%Y-%m-%d')}")
            if platform.system() == "Darwin" and not quick:
                report.section(parts.MAY_RESTART)
            _check(report, Path(folder), quick=quick)
            report.end()
            report.section(f"It took {time.time() - began:.0f} s.")
        except KeyboardInterrupt:
            report.section("It was stopped here.")
            raise
        finally:
            print(f"\nThis is in {out}: read it, and attach it to an issue of this repository.")
    return 1 if report.bad else 0


def _say(text: str, file: TextIO) -> None:
    """Write and print the text. It stays on the disk if the next part brings the machine down."""
    print(text, file=file, flush=True)
    with suppress(OSError):  # a pipe or a terminal is on no disk
        os.fsync(file.fileno())
    print(text, flush=True)


def _check(report: Report, folder: Path, *, quick: bool) -> None:
    with report.expecting("MLX", "it starts"):
        device: dict[str, Any] = compute("device")
        size = sizes.QUICK if quick else sizes.GPU if device["is gpu"] else sizes.CPU
        parts.machine(report, device)
        parts.links(report)
        if not parts.bfloat16(report):
            return
        if not quick:
            parts.suite(report)
        with report.expecting("Models for the check"):
            compute("write", configs=size.configs, folder=str(folder))
            parts.split(report, folder, size)
            parts.pool(report, folder, size)
            parts.rows(report, folder, size)
            with report.expecting("One node"):
                alone = parts.speed(report, folder, size, judge=bool(device["is gpu"]) and not quick)
                with report.expecting("Two nodes"):
                    parts.two_nodes(report, folder, size, alone, host="127.0.0.1" if quick else "")
                with report.expecting("Two streams at once"):
                    parts.turnover(report, folder, size)
