"""Diagnoses a cluster by the states of its nodes. `node/core/warning_codes.py` has the texts and hints."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from node.core.addresses import join_host_port
from node.core.nodes import NodeInfo
from node.core.reports import Issue, NodeReport, Path, Severity, StageReport, StageState
from node.core.rings import Refusal
from node.core.views import PRESENT, PROCESS_ENDED, ClusterView, NodeState, PeerView
from node.core.warning_codes import Code

_NO_REASON = "no reason given"
_MAX_NAMED = 5
"""Maximum nodes that one warning names."""
LONG_JOB_S = 15.0
"""Seconds after which a job counts as stuck; the largest chunk on the slowest machine takes 6 s."""
SLOW_LINK_MS = 5.0
"""Threshold of a slow link. A wired hop takes less than 1 ms; with 5 ms, a ring of three loses 15 ms per token."""


def is_slow(path: Path) -> bool:
    """Whether a path is slow. Loopback never is: if it seems slow, the machine is busy."""
    return path.kind == "wi-fi" or (path.rtt_ms > SLOW_LINK_MS and path.kind != "loopback")


def diagnose(view: ClusterView, *, is_open: bool = False, other_secret: Sequence[PeerView] = ()) -> tuple[Issue, ...]:
    """Find all issues of a cluster as one node sees it, the most severe first.

    `is_open`: no secret is set. `other_secret`: nodes with the same cluster name and another secret.
    """
    version = next((peer.report.info.version for peer in view.peers if peer.report.info.id == view.self_id), "")
    needed = {node for ring in view.placement.rings for node in ring.nodes}
    present = [peer for peer in view.peers if peer.state in PRESENT]
    alive = [peer for peer in present if peer.state is NodeState.ALIVE]
    found = [_refused(refusal) for refusal in view.placement.refused]
    for peer in view.peers:
        found += _about(peer, _node_issues(peer, version, needed))
    for peer in alive:  # the last report of a node that is gone is outdated
        found += _about(peer, _load_issues(peer.report))
    found += _link_issues(view)
    found += secret_mismatch(other_secret)
    found += [Code.OPEN_CLUSTER.issue()] if is_open else []
    found += _version_issues(peer.report.info for peer in present)
    for peer in present:  # what each node says of itself, and of the nodes outside that it has heard
        told = {issue.text for issue in found}
        found += _about(peer, (issue for issue in peer.report.issues if issue.text not in told))
    gravity = list(Severity)
    return tuple(sorted(found, key=lambda issue: gravity.index(issue.severity)))


def _about(peer: PeerView, issues: Iterable[Issue]) -> Iterator[Issue]:
    for issue in issues:
        yield replace(issue, node=peer.report.info.id)


def _version_issues(present: Iterable[NodeInfo]) -> Iterator[Issue]:
    """What nodes of another version do not tell is not compared."""
    versions: dict[str, list[str]] = {}
    infos = list(present)
    differ = len({info.libraries for info in infos if info.libraries}) > 1
    for info in infos:
        with_libraries = f"{info.version} ({info.libraries})" if differ and info.libraries else info.version
        versions.setdefault(with_libraries, []).append(info.name)
    if len(versions) > 1:
        each = "; ".join(f"{version} on {', '.join(names[:_MAX_NAMED])}" for version, names in sorted(versions.items()))
        yield Code.VERSION_SKEW.issue(count=len(versions), versions=each)


def _node_issues(peer: PeerView, version: str, needed: set[str]) -> Iterator[Issue]:
    """`version`: of the node that diagnoses. `needed`: the nodes of the placement's rings."""
    if peer.state is NodeState.FAILED:
        issue = Code.NODE_FAILED.issue(
            node=peer.report.info.name,
            seconds=peer.last_seen_s,
            reason=f": {peer.reason}" if peer.reason else "",
            hint="Start it again." if peer.reason == PROCESS_ENDED else None,
        )
        yield issue if peer.report.info.id in needed else replace(issue, severity=Severity.WARNING)
    elif peer.state is NodeState.REFUSED:
        name, theirs = _placed(peer.report.info), peer.report.info.version
        reason = f"it runs {theirs}, the cluster runs {version}"
        if theirs == version:  # two builds from source
            reason = peer.reason or "it has another protocol version"
        yield Code.VERSION_MISMATCH.issue(node=name, reason=reason)
    elif peer.report.job_s >= LONG_JOB_S and peer.state is not NodeState.LEFT:
        yield Code.COMPUTE_STUCK.issue(node=peer.report.info.name, seconds=peer.report.job_s)
    if peer.report.disk_error and peer.state in PRESENT:
        yield Code.DISK_FAILED.issue(node=peer.report.info.name, error=peer.report.disk_error)


def _load_issues(report: NodeReport) -> Iterator[Issue]:
    node = report.info.name
    for load in report.stages:
        if load.state is StageState.FAILED:
            yield Code.LOAD_FAILED.issue(node=node, layers=_layers(load), error=load.error or _NO_REASON)
        elif load.state is StageState.ENDED:
            yield Code.RING_ENDED.issue(node=node, model=load.shard.model, error=load.error or _NO_REASON)
        elif load.loads:
            yield _loading(node, load)


def gpu_failed(node: str, count: int, error: str) -> Issue:
    """`count`: failures since the node started. `error`: the last one."""
    return Code.GPU_FAILED.issue(node=node, times="once" if count == 1 else f"{count} times", error=error)


def loads_of(view: ClusterView, model: str) -> tuple[Issue, ...]:
    """How far the nodes are that fetch or load layers of a model."""
    alive = [peer.report for peer in view.peers if peer.state is NodeState.ALIVE]
    loads = [(report.info.name, load) for report in alive for load in report.stages if load.shard.model == model]
    return tuple(_loading(node, load) for node, load in loads if load.loads)


def _link_issues(view: ClusterView) -> Iterator[Issue]:
    """Find slow links, only among the hops of rings: other links carry no tokens."""
    peers = {peer.report.info.id: peer for peer in view.peers if peer.state in PRESENT}
    hops = dict.fromkeys((node, ring.after(node)) for ring in view.placement.rings for node in ring.nodes)
    for here, there in hops:
        if here not in peers or there not in peers:
            continue
        path = next((path for path in peers[here].report.paths if path.to == there), None)
        if path is None or not is_slow(path):
            continue
        over = "Wi-Fi" if path.kind == "wi-fi" else path.kind or path.interface
        issue = Code.SLOW_LINK.issue(
            node=peers[here].report.info.name,
            neighbour=peers[there].report.info.name,
            path=f" over {over}" if over else "",
            rtt_ms=path.rtt_ms,
            hint="Plug in Ethernet or Thunderbolt." if path.kind == "wi-fi" else None,
        )
        yield replace(issue, node=here)


# --- their words ----------------------------------------------------------------------------------------------------


def _refused(refusal: Refusal) -> Issue:
    """The head found no place for a model, or cannot run it."""
    code = Code.NO_CAPACITY if refusal.code == "no_capacity" else Code.MODEL_REFUSED
    return code.issue(message=refusal.message, hint=refusal.hint)


def outside(view: ClusterView, refused: Iterable[PeerView]) -> list[PeerView]:
    """Those of the refused nodes that are not in the cluster, by name. Adverts can be forged: none shows a node out of it."""
    here = {peer.report.info.id for peer in view.peers if peer.state in PRESENT}
    others = [peer for peer in refused if peer.report.info.id not in here]
    return sorted(others, key=lambda peer: (peer.report.info.name, peer.report.info.id))


def secret_mismatch(refused: Sequence[PeerView]) -> tuple[Issue, ...]:
    """Nodes have the same cluster name but another secret: of the same user by mistake, or of a neighbour."""
    names = [f"{_placed(peer.report.info)} ({peer.reason})" for peer in refused[:_MAX_NAMED]]
    more = f" and {len(refused) - _MAX_NAMED} more" if len(refused) > _MAX_NAMED else ""
    return (Code.SECRET_MISMATCH.issue(nodes=", ".join(names) + more),) if refused else ()


def _placed(node: NodeInfo) -> str:
    """A node outside, with where it is."""
    where = join_host_port(node.addresses[0], node.grpc_port) if node.addresses else ""
    return node.name if where in ("", node.name) else f"{node.name} at {where}"


def _loading(node: str, load: StageReport) -> Issue:
    return Code.LOADING.issue(
        node=node,
        verb="fetched" if load.state is StageState.FETCHING else "loaded",
        percent=100 * load.progress,
        layers=_layers(load),
        figures=f": {load.download}" if load.download else "",
    )


def _layers(load: StageReport) -> str:
    return f"layers {load.shard.start}-{load.shard.end - 1} of {load.shard.model}"
