"""`node`: starts a node and runs it until Ctrl-C; `node --check` checks this machine instead."""

import asyncio
import gc
import logging
import os
import sys
from contextlib import nullcontext

from node.core.logs import LineFormatter
from node.host.nodejs import meant_for_nodejs
from node.options import Options, parse_options


def main() -> None:
    if sys.argv[1:2] == ["--check"] and not meant_for_nodejs(sys.argv[2:]):  # Node.js, too, has that option
        from node.check.command import main as check  # noqa: PLC0415

        sys.exit(check(sys.argv[2:]))
    options = parse_options()
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    for name in ("httpx", "httpx2"):  # the hub's client logs every request
        logging.getLogger(name).setLevel(logging.WARNING)
    sys.exit(_run(options))


def _run(options: Options) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC logs each failed handshake
    # Imported here, so that --help and usage errors are fast.
    from node.core.errors import PippinError  # noqa: PLC0415
    from node.host.descriptors import fixed_limit, raise_limit  # noqa: PLC0415
    from node.host.identity import open_data_directory  # noqa: PLC0415
    from node.host.memory import limit_arenas  # noqa: PLC0415
    from node.host.sleep import prevent_sleep  # noqa: PLC0415
    from node.text.sandbox import SandboxServer  # noqa: PLC0415

    limit_arenas()
    sandboxes = SandboxServer()  # before threads and gRPC start; it imports in parallel to this process
    with fixed_limit():
        from node.daemon import Daemon, HostFacts  # noqa: PLC0415
    raise_limit()

    async def run() -> int:
        return await Daemon(options, data, facts, sandboxes).run()

    try:
        with open_data_directory(options.data_dir) as data, nullcontext() if options.allow_sleep else prevent_sleep():
            facts = HostFacts.read(options)
            gc.freeze()  # else each full collection visits all imported objects, and stops every thread for 0.06 s
            return asyncio.run(run())
    except PippinError as error:
        print(f"node: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        sandboxes.close()


if __name__ == "__main__":
    main()
