"""What is wrong with a cluster, in words: the one registry of warnings.

`cluster status`, the web page and the log all show these issues, so each code, its words and its advice are written
here and nowhere else. `diagnose` finds all issues of a view.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from node.core.types import ClusterView, Link, LoadReport, LoadState, NodeState, PeerView, Refusal

_NAMED = 5
"""Nodes that one line names."""
LONG_JOB_S = 15.0
"""The largest chunk on the slowest machine takes 6 s."""
SLOW_LINK_MS = 5.0
"""A wired hop takes below 1 ms. At 5 ms a hop, a ring of three loses 15 ms on every token."""


class Severity(StrEnum):
    ERROR = "error"
    """Something that was asked for does not work."""
    WARNING = "warning"
    """It works, but worse than it could."""
    INFO = "info"
    """Worth knowing; nothing is wrong."""


class Code(StrEnum):
    """Stable: scripts and dashboards match on them."""

    NO_CAPACITY = "no-capacity"
    MODEL_REFUSED = "model-refused"
    LOAD_FAILED = "load-failed"
    NODE_FAILED = "node-failed"
    COMPUTE_STUCK = "compute-stuck"
    DISK_FAILED = "disk-failed"
    VERSION_MISMATCH = "version-mismatch"
    SECRET_MISMATCH = "secret-mismatch"  # noqa: S105 - no password
    DUPLICATE = "double"
    SLOW_LINK = "slow-link"
    RING_ENDED = "ring-ended"
    LOADING = "loading"
    OPEN_CLUSTER = "open-cluster"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing a person may want to act on: what happened, with numbers, and what to do."""

    code: Code
    severity: Severity
    text: str
    hint: str = ""


def _sentence(text: str) -> str:
    """Errors of libraries end as they please; the hint follows on the same line."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- one function a code --------------------------------------------------------------------------------------------


def model_refused(refusal: Refusal) -> Issue:
    """The head found no place for a model, or can't run it at all."""
    code = Code.NO_CAPACITY if refusal.code == "no_capacity" else Code.MODEL_REFUSED
    return Issue(code, Severity.ERROR, _sentence(refusal.message), refusal.hint)


def load_failed(node: str, load: LoadReport) -> Issue:
    shard = load.shard
    return Issue(
        Code.LOAD_FAILED,
        Severity.ERROR,
        _sentence(
            f"{node} could not load layers {shard.start}-{shard.end - 1} of {shard.model}: {load.error or 'no reason'}"
        ),
        f"The log of {node} says more. Load the model again when the cause is gone.",
    )


def ring_ended(node: str, load: LoadReport) -> Issue:
    return Issue(
        Code.RING_ENDED,
        Severity.WARNING,
        _sentence(f"A ring of {load.shard.model} ended at {node}: {load.error or 'no reason'}"),
        "Another takes its place, once a second at most. If this stays, look at the network between its nodes.",
    )


def node_failed(peer: PeerView, *, needed: bool) -> Issue:
    """`needed`: a ring of the placement still counts on it."""
    reason = f": {peer.reason}" if peer.reason else ""
    return Issue(
        Code.NODE_FAILED,
        Severity.ERROR if needed else Severity.WARNING,
        _sentence(f"{peer.report.info.name} has not answered for {peer.last_seen_s:.0f} s{reason}"),
        "Check its power and its network. It joins again by itself.",
    )


def compute_stuck(node: str, seconds: float) -> Issue:
    return Issue(
        Code.COMPUTE_STUCK,
        Severity.WARNING,
        f"{node} has been at one computation for {seconds:.0f} s.",
        "If it does not come to its end, the node ends by itself (--step-timeout): then start it again.",
    )


def disk_failed(node: str, error: str) -> Issue:
    return Issue(
        Code.DISK_FAILED,
        Severity.WARNING,
        _sentence(f"{node} can't write to its data directory, so it does not become head: {error}"),
        "Make room on its disk, or let it write there. It is tried again every few seconds.",
    )


def version_mismatch(peer: PeerView, cluster_version: str) -> Issue:
    """A node of another protocol. Equal versions (two builds from source) leave only its own reason to tell."""
    name, version = peer.report.info.name, peer.report.info.version
    why = f"it runs {version}, the cluster runs {cluster_version}"
    if version == cluster_version:
        why = peer.reason or "it speaks another protocol"
    return Issue(
        Code.VERSION_MISMATCH,
        Severity.WARNING,
        _sentence(f"{name} has not joined: {why}"),
        "Install the same version on every node.",
    )


def secret_mismatch(refused: Sequence[PeerView]) -> Issue:
    """Nodes of the cluster's name with another secret: a Mac whose secret was forgotten, or a neighbour's cluster."""
    told = [f"{peer.report.info.name} ({peer.reason})" for peer in refused[:_NAMED]]
    more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    return Issue(
        Code.SECRET_MISMATCH,
        Severity.WARNING,
        f"Not joined, though of the same cluster name: {', '.join(told)}{more}.",
        "Start all of your nodes with one --secret-file. If these are not yours, choose another --cluster name.",
    )


def duplicate(name: str) -> Issue:
    """Another process has this node's key."""
    return Issue(
        Code.DUPLICATE,
        Severity.WARNING,
        f"{name} was started with a copy of this node's data directory; it has given way.",
        f"If {name} does not join by itself, start it again: it has a new id. Don't copy data directories.",
    )


def slow_link(node: str, neighbour: str, link: Link) -> Issue:
    if link.kind == "wi-fi":
        text = f"{node} reaches {neighbour} over Wi-Fi ({link.rtt_ms:.1f} ms per token)."
        return Issue(Code.SLOW_LINK, Severity.WARNING, text, "Plug in Ethernet or Thunderbolt.")
    path = f" over {link.kind or link.interface}" if link.kind or link.interface else ""
    text = f"{node} reaches {neighbour}{path} in {link.rtt_ms:.1f} ms per token."
    return Issue(Code.SLOW_LINK, Severity.WARNING, text, "Look for a busy network, a VPN or a wireless bridge.")


def loading(node: str, load: LoadReport) -> Issue:
    verb = "fetched" if load.state is LoadState.FETCHING else "loaded"
    shard = load.shard
    text = f"{node} has {verb} {100 * load.progress:.0f} % of layers {shard.start}-{shard.end - 1} of {shard.model}."
    return Issue(Code.LOADING, Severity.INFO, text)


def open_cluster() -> Issue:
    return Issue(
        Code.OPEN_CLUSTER,
        Severity.INFO,
        "No secret is set: every machine on this network can join the cluster and read what passes through it.",
        "Start all nodes with one --secret-file, or use this on networks that you trust only.",
    )


# --- all of them ----------------------------------------------------------------------------------------------------


def is_slow(link: Link) -> bool:
    """Loopback never is: what is slow there is a machine that has other things to do."""
    return link.kind == "wi-fi" or (link.rtt_ms > SLOW_LINK_MS and link.kind != "loopback")


def diagnose(view: ClusterView, *, is_open: bool = False, other_secret: Sequence[PeerView] = ()) -> tuple[Issue, ...]:
    """All issues of a cluster as one node sees it, gravest first.

    `is_open`: no secret is set. `other_secret`: nodes of the same cluster name that have another one.
    """
    found = [model_refused(refusal) for refusal in view.placement.refused]
    found += _node_issues(view)
    found += _load_issues(view)
    found += _link_issues(view)
    found += [duplicate(view.duplicate)] if view.duplicate else []
    found += [secret_mismatch(other_secret)] if other_secret else []
    found += [open_cluster()] if is_open else []
    gravity = list(Severity)
    return tuple(sorted(found, key=lambda issue: gravity.index(issue.severity)))


def _node_issues(view: ClusterView) -> Iterator[Issue]:
    version = next((peer.report.info.version for peer in view.peers if peer.report.info.id == view.self_id), "")
    needed = {stage.node for ring in view.placement.rings for stage in ring.stages}
    for peer in view.peers:
        if peer.state is NodeState.FAILED:
            yield node_failed(peer, needed=peer.report.info.id in needed)
        elif peer.state is NodeState.REFUSED:
            yield version_mismatch(peer, version)
        elif peer.report.job_s >= LONG_JOB_S and peer.state is not NodeState.LEFT:
            yield compute_stuck(peer.report.info.name, peer.report.job_s)
        if peer.report.disk_error and peer.state in (NodeState.ALIVE, NodeState.SUSPECT):
            yield disk_failed(peer.report.info.name, peer.report.disk_error)


def _load_issues(view: ClusterView) -> Iterator[Issue]:
    for peer in view.peers:
        if peer.state is not NodeState.ALIVE:
            continue  # what a node that is gone was loading helps nobody
        for load in peer.report.loads:
            if load.state is LoadState.FAILED:
                yield load_failed(peer.report.info.name, load)
            elif load.state is LoadState.ENDED:
                yield ring_ended(peer.report.info.name, load)
            elif load.state is not LoadState.READY:
                yield loading(peer.report.info.name, load)


def _link_issues(view: ClusterView) -> Iterator[Issue]:
    """Of the hops in use only: a slow link that carries no tokens slows nothing."""
    peers = {peer.report.info.id: peer for peer in view.peers if peer.state in (NodeState.ALIVE, NodeState.SUSPECT)}
    hops = dict.fromkeys(
        (stage.node, ring.stages[(place + 1) % len(ring.stages)].node)
        for ring in view.placement.rings
        for place, stage in enumerate(ring.stages)
    )
    for here, there in hops:
        if here not in peers or there not in peers:
            continue
        link = next((link for link in peers[here].report.links if link.to == there), None)
        if link is not None and is_slow(link):
            yield slow_link(peers[here].report.info.name, peers[there].report.info.name, link)
