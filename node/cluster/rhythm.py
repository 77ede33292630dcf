"""How often two nodes exchange heartbeats. Pure.

While requests run or models load, all do so every 0.6 s: whatever breaks then has to be noticed at once, by everybody.
At rest, each node keeps watch over two others only, its neighbours in the order of ids, every 1.2 s; all others rest for
RESTING_S. Whoever misses a neighbour tells all nodes, and each asks all others at once. So a quiet cluster notices a loss
hardly later than a busy one, as two nodes watch each, and the cost for each node hardly grows with their number.
"""

import zlib
from collections.abc import Sequence

from node.core.reports import NodeReport, StageState

HEARTBEAT_S = 0.6
"""Interval of heartbeats with a node that does not rest."""
FEW = 3
"""Up to so many nodes are all neighbours of each other, and do not rest."""
RESTING_S = 12.0, 18.0
"""Least and greatest interval of heartbeats with a node that rests. Each pair has its own, so that they spread out: when a node
asks all others at once, these would else be due together from then on.
"""
_STEP_S = 0.3
"""All intervals are multiples of it, as periodic tasks run in step (node/core/clock.py)."""
WATCHED_BY_TWO_S = 1.2
"""Interval of heartbeats with a neighbour at rest."""
PATIENCE = 1.75
"""Of a pair, the node of the smaller id calls. The other one calls if that is late by this factor of HEARTBEAT_S: by more than
delays vary over Wi-Fi, so that not both do.
"""


def rest_s(own: str, node: str, alive: Sequence[NodeReport]) -> float:
    """Seconds for which a node need not be heard. `alive`: all nodes that take part, including this one, `own`."""
    if not is_quiet(alive):
        return 0.0
    ids = sorted({own, *(report.info.id for report in alive)})
    if node not in ids:
        return 0.0
    apart = abs(ids.index(own) - ids.index(node))
    if apart not in (1, len(ids) - 1):
        return _resting_s(own, node) - HEARTBEAT_S
    return WATCHED_BY_TWO_S - HEARTBEAT_S if len(ids) > FEW else 0.0


def _resting_s(one: str, other: str) -> float:
    least, most = RESTING_S
    steps = round((most - least) / _STEP_S) + 1
    return least + zlib.crc32("".join(sorted((one, other))).encode()) % steps * _STEP_S


def interval_s(own: str, node: str) -> float:
    """Seconds after which this node calls another one that is silent."""
    return HEARTBEAT_S if own < node else HEARTBEAT_S * PATIENCE


def is_quiet(nodes: Sequence[NodeReport]) -> bool:
    """Whether no node has requests, and none is loading a model, which may come from another node."""
    busy = any(ring.running or ring.queued for node in nodes for ring in node.traffic)
    loading = (StageState.FETCHING, StageState.LOADING)
    return not busy and not any(stage.state in loading for node in nodes for stage in node.stages)


def is_news(report: NodeReport, before: NodeReport) -> bool:
    """Whether a node's new report has to be told at once. Measurements, and how much it has to do, wait for the next heartbeat."""
    return _essence(report) != _essence(before)


def _essence(report: NodeReport) -> tuple[object, ...]:
    return (
        report.info,
        report.memory.usable,
        (report.term, report.head, report.fence, report.draining, report.disk_error),
        [(stage.ring, stage.shard, stage.state, stage.error) for stage in report.stages],
        [(ring.ring, ring.running + ring.queued > 0) for ring in report.traffic],
        (report.models, report.preload, report.drafts, report.min_stages, report.idle, report.speeds, report.suspects),
        (report.aliases, report.presets),
        report.peers,
        [issue.code for issue in report.issues],
    )
