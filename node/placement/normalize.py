"""Reduces node reports to what a placement depends on: equal between calls if nothing happened."""

from collections.abc import Sequence
from dataclasses import replace

from node.core.nodes import Memory
from node.core.reports import NodeReport, Path, StageState


def normalize(nodes: Sequence[NodeReport]) -> tuple[NodeReport, ...]:
    """The reports, reduced to what placement uses, sorted by id."""
    return tuple(
        NodeReport(
            info=node.info,
            memory=Memory(node.memory.total, node.memory.usable),
            stages=tuple(
                replace(stage, progress=1.0, state=StageState.READY, error="")
                for stage in node.stages
                if stage.state in (StageState.READY, StageState.ENDED)
            ),
            models=node.models,
            min_stages=node.min_stages,
            paths=tuple(Path(path.to, "", path.rtt_ms) for path in node.paths),
            draining=node.draining,
            idle=node.idle,
            speeds=node.speeds,
        )
        for node in sorted(nodes, key=lambda node: node.info.id)
    )
