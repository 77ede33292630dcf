"""Has pictures of strangers decoded in sandboxes, apart from all texts: a decoder that is overcome has nothing to read there."""

import marshal
from dataclasses import astuple
from functools import partial

from node.core.errors import BadRequest
from node.core.fair_turns import FairTurns
from node.core.pictures import Picture
from node.model.picture_form import PictureForm
from node.text.picture_job import SIZE
from node.text.sandbox import Bounds, Sandbox, Sandboxes, SandboxFailed, SandboxServer

_JOB = "node.text.picture_job:make_job"
BOUNDS = Bounds(seconds=30.0, memory=2 * 2**30, reply=64 * 2**20, longer=False, kept=64 * 2**20)
"""Limits of one picture. The largest takes some 3 s and 1 GB."""
_AT_ONCE, _MAX_WAITING = 2, 256
"""Pictures that are decoded at once, and most that one client waits for."""


class Pictures:
    """Create it inside a running event loop."""

    def __init__(self, server: SandboxServer, bounds: Bounds = BOUNDS) -> None:
        start = partial(Sandbox.start, server, _JOB, bounds)
        self._sandboxes = Sandboxes(start, FairTurns("a picture to be decoded", _AT_ONCE, _MAX_WAITING))

    async def decode(self, data: bytes, form: PictureForm, *, param: str, client: str) -> Picture:
        """The picture of a client's file, as a model of this form takes it. Raises BadRequest, which names `param`; Overloaded,
        NotReady.
        """
        try:
            reply = await self._sandboxes.ask(marshal.dumps((data, astuple(form))), client)
        except SandboxFailed as error:
            raise BadRequest(f"A picture can't be decoded: {error}.", param=param) from error
        except BadRequest as error:
            error.param = param
            raise
        width, height = SIZE.unpack_from(reply)
        return Picture(width, height, reply[SIZE.size :])

    async def end(self) -> None:
        await self._sandboxes.close()
