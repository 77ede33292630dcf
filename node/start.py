"""Starts a node from its command line, and runs it until Ctrl-C."""

import gc
import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from node.core.logs import ERASE_LINE, LineFormatter, RecentLines
from node.options import Options, parse_options

LOG_BYTES, LOG_FILES = 10 * 2**20, 5


def main() -> int:
    """Returns the exit code."""
    options = parse_options()
    recent = RecentLines()
    keep = logging.StreamHandler(recent)
    keep.setFormatter(LineFormatter())
    level = logging.getLevelNamesMapping()[options.log_level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[_log_handler(options.log_file), keep])
    for package in ("node", "api"):  # of gRPC, the hub's client and others, only warnings are of use
        logging.getLogger(package).setLevel(level)
    return _run(options, recent)


def _log_handler(file: Path | None) -> logging.Handler:
    handler: logging.Handler = logging.StreamHandler()
    if file:
        from logging.handlers import RotatingFileHandler  # noqa: PLC0415 - it takes a while, and few name a file

        try:
            handler = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")
        except OSError as error:
            sys.exit(f"node: the log file {file} can't be written: {error.strerror}")  # with 1
    before = ERASE_LINE if file is None and sys.stderr.isatty() else ""
    handler.setFormatter(LineFormatter(before, with_date=file is not None))
    return handler


def _run(options: Options, recent: RecentLines) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC logs each failed handshake
    # Imported here, so that --help and usage errors are fast.
    import asyncio  # noqa: PLC0415

    from node.core.errors import PippinError  # noqa: PLC0415
    from node.host.descriptors import fixed_limit, raise_limit  # noqa: PLC0415
    from node.host.failures import wait_after_failures  # noqa: PLC0415
    from node.host.identity import open_data_directory  # noqa: PLC0415
    from node.host.machine_id import machine_id  # noqa: PLC0415
    from node.host.memory import limit_arenas  # noqa: PLC0415
    from node.host.sleep import prevent_sleep  # noqa: PLC0415
    from node.text.sandbox import SandboxServer  # noqa: PLC0415
    from node.text.tokenizer_files import remove_stale  # noqa: PLC0415

    limit_arenas()
    remove_stale()
    sandboxes = SandboxServer()  # before threads and gRPC start; it imports in parallel to this process
    with fixed_limit():
        from node.daemon.daemon import Daemon  # noqa: PLC0415
        from node.daemon.facts import HostFacts  # noqa: PLC0415
    raise_limit()

    async def run() -> int:
        return await Daemon(options, data, facts, sandboxes, recent).run()

    try:
        with (
            open_data_directory(options.data_dir, machine=machine_id()) as data,
            nullcontext() if options.allow_sleep else prevent_sleep(),
        ):
            wait_after_failures(data.path)
            facts = HostFacts.read(options)
            gc.freeze()  # else each full collection visits all imported objects, and stops every thread for 0.06 s
            return asyncio.run(run())
    except PippinError as error:
        print(f"node: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        sandboxes.close()
