"""A ring of bare stages: the speed that remains of one process when two or three parts of a model take turns, without
gRPC, event loop, HTTP or scheduling. No ring of processes on this machine can be faster, so it is the upper limit for
Pippin's.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes
import ring_nodes
from processes import Child


@dataclass(frozen=True, slots=True)
class BareRing:
    children: Sequence[Child]

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self.children]

    def seconds(self, prompt: Sequence[int], tokens: int) -> float:
        """Return the seconds from the first token of an answer to the last."""
        seconds: float = self.children[0].ask(prompt=list(prompt), tokens=tokens)["rest"]
        return seconds


@contextlib.contextmanager
def running(stages: int, model: Path, preload: Path | None) -> Iterator[BareRing]:
    """Start the processes, each on the core that a node would have, and connect them in a circle."""
    layers: int = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    cores = ring_nodes.assign(stages, processes.cores())
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                Child("bare_child.py", str(model), str(start), str(end), core=core, env=processes.environment(preload))
            )
            for start, end, core in zip(bounds[:-1], bounds[1:], cores, strict=True)
        ]
        ports = [child.answer()["port"] for child in children]
        for child, port in zip(children, ports[1:] + ports[:1], strict=True):
            child.tell(next=port)
        for child in children:
            child.answer()
        yield BareRing(children)
