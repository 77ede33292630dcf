"""Finds out whether two models have the same tokens, in a sandbox, as it reads both tokenizers."""

import marshal
from pathlib import Path

from node.core.errors import ModelBroken, naming
from node.text.sandbox import Sandbox, SandboxFailed, SandboxServer
from node.text.sandboxed_encoder import BOUNDS
from node.text.tokenizer_files import copies


async def difference(server: SandboxServer, one: Path, other: Path) -> str:
    """How the tokens of the model in directory `other` differ from those of `one`; empty if they are the same.

    Raises ModelBroken if a tokenizer can't be read within the limits, NotReady, Overloaded.
    """
    async with copies(server.files, one, other) as (private, folders):
        sandbox = await Sandbox.start(server, "node.text.tokenizer_job:make_comparison", BOUNDS, private)
        try:
            return (await sandbox.ask(marshal.dumps(list(map(str, folders))))).decode()
        except (SandboxFailed, ModelBroken) as error:
            why = naming(naming(error, folders[0]), folders[1])
            raise ModelBroken(f"The tokenizers of {one.name} and {other.name} can't be compared: {why}.") from error
        finally:
            sandbox.end()
