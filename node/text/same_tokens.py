"""Finds out whether two models have the same tokens, in a sandbox, as it reads both tokenizers."""

import marshal
from pathlib import Path

from transformers import AutoTokenizer

from node.core.errors import ModelBroken, naming
from node.text.sandbox import Sandbox, SandboxFailed, SandboxServer
from node.text.sandbox_server import Job
from node.text.sandboxed_encoder import BOUNDS
from node.text.tokenizer_files import copies
from node.text.tokenizer_settings import clean

MOST_MORE = 1024
"""Maximum tokens that one of them may have beyond the other's: families add control tokens from size to size."""


async def difference(server: SandboxServer, one: Path, other: Path) -> str:
    """How the tokens of the model in directory `other` differ from those of `one`; empty if they are the same.

    Raises ModelBroken if a tokenizer can't be read within the limits, NotReady, Overloaded.
    """
    try:
        async with copies(server.files, one, other) as (private, folders):
            sandbox = await Sandbox.start(server, f"{__name__}:make_job", BOUNDS, private)
            try:
                return (await sandbox.ask(marshal.dumps(list(map(str, folders))))).decode()
            except SandboxFailed as error:
                raise SandboxFailed(naming(naming(error, folders[0]), folders[1])) from error
            finally:
                sandbox.end()
    except SandboxFailed as error:
        raise ModelBroken(f"The tokenizers of {one.name} and {other.name} can't be compared: {error}.") from error


def make_job() -> Job:
    """Create the job. A request is marshalled: the two copies of tokenizer files. The reply is the difference."""

    def answer(request: bytes) -> bytes:
        return _difference(*map(_tokens, marshal.loads(request))).encode()  # noqa: S302 - written by the node

    return answer


def _tokens(folder: str) -> dict[int, str]:
    clean(Path(folder))
    tokenizer = AutoTokenizer.from_pretrained(Path(folder), trust_remote_code=False)
    return {token: text for text, token in tokenizer.get_vocab().items()}


def _difference(one: dict[int, str], other: dict[int, str]) -> str:
    if abs(len(one) - len(other)) > MOST_MORE:
        return f"it has {len(other):,} tokens instead of {len(one):,}"
    different = [token for token in sorted(one.keys() & other.keys()) if one[token] != other[token]]
    if not different:
        return ""
    first = different[0]
    return f"{len(different):,} of its tokens differ, the first is {first}: {other[first]!r:.40} instead of {one[first]!r:.40}"
