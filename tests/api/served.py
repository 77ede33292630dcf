"""A gateway in its own process, with a backend that answers "Hello" at no cost: `python -m tests.api.served`.

It prints its port, and ends when its standard input closes.
"""

import asyncio
import gc
import sys

from api.app import create_app
from api.http.server import ApiServer
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from node.text.tokenizer import Tokenizer
from tests.api.conftest import DEMO, MODEL, ScriptedBackend, ScriptedModel


async def serve(sandboxes: SandboxServer) -> None:
    grammars = Grammars(sandboxes)
    backend = ScriptedBackend(ScriptedModel(MODEL, 2048, Tokenizer(DEMO)), grammars)
    backend.say("Hello")
    server = ApiServer(["127.0.0.1"], 0)
    await server.start(create_app(backend))
    gc.collect()
    gc.freeze()  # as a node does
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await grammars.end()
    sandboxes.close()


if __name__ == "__main__":
    asyncio.run(serve(SandboxServer()))
