"""Has a model run once in a process that may die, before this node runs it."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from node.core.errors import ModelCrashes, NotReady, Overloaded
from node.core.lru_cache import keep
from node.engine.device import is_gpu
from node.text.sandbox import Bounds, Sandbox, SandboxFailed, SandboxServer

log = logging.getLogger(__name__)

_JOB = "node.engine.trial:make_job"
_BOUNDS = Bounds(seconds=120.0, memory=4 * 2**30, reply=2**20, patience=1.0)
"""The models of a trial are tiny: mostly a second, and 200 MB. The largest embedding takes a gigabyte of its own."""
_KEPT = 256
"""Number of models that are known to run."""


class Trials:
    """The models of which this node knows that their first run does not end the process."""

    def __init__(
        self, sandboxes: SandboxServer, known: Iterable[Mapping[str, Any]] = (), *, unproven: bool = False
    ) -> None:
        """`known`: configs that need no trial. `unproven`: see `make_plan`."""
        self._unproven = unproven
        self._sandboxes = sandboxes
        self._passed = dict.fromkeys(map(_key, known))
        self._one = asyncio.Lock()
        """One at a time: each takes memory beside the node's models."""

    async def check(self, config: Mapping[str, Any], weight_bytes: int, kv_bits: int) -> None:
        """Raises ModelCrashes if the process died, or needed too much. Where no such process can be started, as on a machine
        without memory for it, the node does without.
        """
        key, device = _key(config), "gpu" if is_gpu() else "cpu"
        how = {"kv_bits": kv_bits, "device": device, "unproven": self._unproven}
        request = json.dumps({"config": config, "weight_bytes": weight_bytes, **how})
        async with self._one:
            if key in self._passed:
                return
            try:
                sandbox = await Sandbox.start(self._sandboxes, _JOB, _BOUNDS)
            except (NotReady, Overloaded) as error:
                log.warning("a model runs without a trial in a process of its own: %s", error)
                return
            try:
                await sandbox.ask(request.encode())
            except SandboxFailed as error:
                raise ModelCrashes(
                    f"A first run of this {config.get('model_type')} model, in a process of its own, failed: {error}.",
                    hint="Its config.json asks for what MLX cannot do, or is damaged. Fetch the model again.",
                ) from error
            finally:
                sandbox.end()
            keep(self._passed, key, None, _KEPT)


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
