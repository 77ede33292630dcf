"""A gateway, or a driver without a ring, on an engine that computes nothing; see gateway.py.

gateway_child.py gateway            HTTP on an engine in this process
gateway_child.py gateway HOST:PORT  HTTP on the engine of a driver
gateway_child.py driver             gRPC
"""

import argparse
import asyncio
import cProfile
import json
import sys
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine, FakeGateway, FakeServing, demo_tokens
from figures import ROOT

from api.app import create_app
from api.http.server import ApiServer
from node.core.nodes import Address
from node.core.pool import Pools
from node.rpc.client import RpcClient
from node.rpc.server import RpcServer
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from node.text.sandboxed_encoder import TokenizerProcesses

DEMO = ROOT / "node" / "builtin" / "pippin-demo"


async def serve(options: argparse.Namespace) -> None:
    sandboxes = SandboxServer()
    engine = FakeEngine(demo_tokens(DEMO))
    running = asyncio.create_task(engine.run())
    own = await engine.own_cost(64, 200)
    if options.role == "driver":
        nothing: Any = None  # no request reaches the control plane or files
        rpc = RpcServer(["127.0.0.1"], 0)
        await rpc.start(nothing, FakeServing(engine), nothing)
        say({"port": rpc.port, "own": own})
        await asyncio.to_thread(sys.stdin.readline)
        await rpc.stop(0)
    else:
        async with RpcClient() as client:
            api = ApiServer(["127.0.0.1"], 0)
            grammars, processes = Grammars(sandboxes), TokenizerProcesses(sandboxes, DEMO, Pools().texts)
            await processes.open()
            remote = client if options.driver else None
            gateway: Any = FakeGateway(engine, processes, grammars, remote, Address(options.driver))
            await api.start(create_app(gateway))
            say({"port": api.port, "own": own})
            await asyncio.to_thread(sys.stdin.readline)
            await api.stop()
            await grammars.end()
            await processes.close()
    sandboxes.close()
    running.cancel()


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("gateway", "driver"))
    parser.add_argument("driver", nargs="?", default="")
    parser.add_argument("--profile", type=Path, help="write cProfile's figures there at the end")
    options = parser.parse_args()
    if options.profile is None:
        asyncio.run(serve(options))
        return
    profile = cProfile.Profile()
    profile.runcall(asyncio.run, serve(options))
    profile.dump_stats(options.profile)
    say({})


if __name__ == "__main__":
    main()
