"""Diagnoses a cluster: the only place with the codes, texts and hints of the warnings in `cluster status`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from node.core.reports import Issue, Path, Severity, StageReport, StageState
from node.core.rings import Refusal
from node.core.units import format_bytes
from node.core.views import PRESENT, PROCESS_ENDED, ClusterView, NodeState, PeerView

_MAX_NAMED = 5
"""Maximum nodes that one warning names."""
LONG_JOB_S = 15.0
"""Seconds after which a job counts as stuck; the largest chunk on the slowest machine takes 6 s."""
SLOW_LINK_MS = 5.0
"""Threshold of a slow link. A wired hop takes less than 1 ms; with 5 ms, a ring of three loses 15 ms per token."""


class Code(StrEnum):
    """Stable codes, on which scripts and dashboards rely."""

    NO_CAPACITY = "no-capacity"
    MODEL_REFUSED = "model-refused"
    LOAD_FAILED = "load-failed"
    NODE_FAILED = "node-failed"
    COMPUTE_STUCK = "compute-stuck"
    GPU_FAILED = "gpu-failed"
    DISK_FAILED = "disk-failed"
    VERSION_MISMATCH = "version-mismatch"
    SECRET_MISMATCH = "secret-mismatch"  # noqa: S105 - no password
    SLOW_LINK = "slow-link"
    RING_ENDED = "ring-ended"
    LOADING = "loading"
    OPEN_CLUSTER = "open-cluster"
    VERSION_SKEW = "version-skew"
    NO_MULTICAST = "no-multicast"
    DISK_LOW = "disk-low"
    FOLDER_DENIED = "folder-denied"
    FEW_DESCRIPTORS = "few-descriptors"
    MEMORY_LIMIT = "memory-limit"
    WIRED_MEMORY = "wired-memory"
    MAY_SLEEP = "may-sleep"
    OPEN_API = "open-api"
    WHICH_NODE = "which-node"
    ROSETTA = "rosetta"
    NODE_UNREACHABLE = "node-unreachable"
    FIREWALL = "firewall"
    SLOW_BLAS = "slow-blas"
    POOL_FULL = "pool-full"


def _sentence(text: str) -> str:
    """End the text with a full stop: errors of libraries may have none, and a hint follows on the same line."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- one function a code --------------------------------------------------------------------------------------------


def model_refused(refusal: Refusal) -> Issue:
    """The head found no place for a model, or cannot run it."""
    code = Code.NO_CAPACITY if refusal.code == "no_capacity" else Code.MODEL_REFUSED
    return Issue(code, Severity.ERROR, _sentence(refusal.message), refusal.hint)


def load_failed(node: str, load: StageReport) -> Issue:
    text = f"{node} could not load {_layers(load)}: {load.error or 'no reason given'}"
    hint = f"See the log of {node}. Load the model again when the cause is gone."
    return Issue(Code.LOAD_FAILED, Severity.ERROR, _sentence(text), hint)


def ring_ended(node: str, load: StageReport) -> Issue:
    text = f"A ring of {load.shard.model} ended at {node}: {load.error or 'no reason given'}"
    hint = "A new ring replaces it, at most once a second. If this repeats, check the network between its nodes."
    return Issue(Code.RING_ENDED, Severity.WARNING, _sentence(text), hint)


def node_failed(peer: PeerView, *, needed: bool) -> Issue:
    """`needed`: whether a ring of the placement includes it."""
    reason = f": {peer.reason}" if peer.reason else ""
    text = f"{peer.report.info.name} has not answered for {peer.last_seen_s:.0f} s{reason}"
    is_ended = peer.reason == PROCESS_ENDED
    hint = "Start it again." if is_ended else "Check its power and its network. It joins again by itself."
    return Issue(Code.NODE_FAILED, Severity.ERROR if needed else Severity.WARNING, _sentence(text), hint)


def compute_stuck(node: str, seconds: float) -> Issue:
    text = f"{node} has been busy with one computation for {seconds:.0f} s."
    hint = "If the computation never ends, the node exits by itself (see --step-timeout): then start it again."
    return Issue(Code.COMPUTE_STUCK, Severity.WARNING, text, hint)


def gpu_failed(node: str, count: int, error: str) -> Issue:
    """`count`: failures since the node started. `error`: the last one."""
    times = "once" if count == 1 else f"{count} times"
    text = f"{node} has seen its GPU fail {times} since it started, the last time so: {error}"
    hint = "Answers went on without a gap. If it repeats, restart that machine; on a Mac read docs/mac.md first."
    return Issue(Code.GPU_FAILED, Severity.WARNING, _sentence(text), hint)


def disk_failed(node: str, error: str) -> Issue:
    text = f"{node} can't write to its data directory, so it does not become head: {error}"
    hint = "Free space on its disk, or fix the permissions of the directory. The node retries every few seconds."
    return Issue(Code.DISK_FAILED, Severity.WARNING, _sentence(text), hint)


def version_mismatch(peer: PeerView, cluster_version: str) -> Issue:
    """A node's protocol differs too much. Of two builds from source with equal versions, only its own reason is given."""
    name, version = peer.report.info.name, peer.report.info.version
    why = f"it runs {version}, the cluster runs {cluster_version}"
    if version == cluster_version:
        why = peer.reason or "it has another protocol version"
    text = _sentence(f"{name} has not joined: {why}")
    return Issue(Code.VERSION_MISMATCH, Severity.WARNING, text, "Install the same version on every node.")


def secret_mismatch(refused: Sequence[PeerView]) -> Issue:
    """Nodes have the same cluster name but another secret: of the same user by mistake, or of a neighbour."""
    names = [f"{peer.report.info.name} ({peer.reason})" for peer in refused[:_MAX_NAMED]]
    more = f" and {len(refused) - _MAX_NAMED} more" if len(refused) > _MAX_NAMED else ""
    text = f"Nodes with the same cluster name, but not the same secret, have not joined: {', '.join(names)}{more}."
    hint = "Start all your nodes with the same --secret-file. If these are not yours, choose another --cluster name."
    return Issue(Code.SECRET_MISMATCH, Severity.WARNING, text, hint)


def version_skew(versions: dict[str, list[str]]) -> Issue:
    """Nodes work together, but run different versions. `versions`: names of the nodes, by version."""
    each = "; ".join(f"{version} on {', '.join(names[:_MAX_NAMED])}" for version, names in sorted(versions.items()))
    hint = "Update the others one after the other: `cluster drain NODE`, install, start it again."
    return Issue(Code.VERSION_SKEW, Severity.INFO, f"The nodes run {len(versions)} versions: {each}.", hint)


def slow_link(node: str, neighbour: str, path: Path) -> Issue:
    if path.kind == "wi-fi":
        over, hint = " over Wi-Fi", "Plug in Ethernet or Thunderbolt."
    else:
        over = f" over {path.kind or path.interface}" if path.kind or path.interface else ""
        hint = "Check for a busy network, a VPN or a wireless bridge."
    text = f"{node} reaches {neighbour}{over} in {path.rtt_ms:.1f} ms per token."
    return Issue(Code.SLOW_LINK, Severity.WARNING, text, hint)


def loading(node: str, load: StageReport) -> Issue:
    verb = "fetched" if load.state is StageState.FETCHING else "loaded"
    figures = f": {load.download}" if load.download else ""
    text = f"{node} has {verb} {100 * load.progress:.0f} % of {_layers(load)}{figures}."
    return Issue(Code.LOADING, Severity.INFO, text)


def open_cluster() -> Issue:
    text = "No secret is set: every machine on this network can join the cluster and read its prompts and answers."
    hint = "Start all nodes with the same --secret-file, or use the cluster only on networks that you trust."
    return Issue(Code.OPEN_CLUSTER, Severity.INFO, text, hint)


def no_multicast(node: str, why: str, permission: str) -> Issue:
    """`permission`: what to do on a Mac, else empty."""
    text = f"{node} neither finds others nor is found by itself, as multicast DNS does not work there: {why}"
    hint = f"Allow UDP port 5353, or name other nodes with --peer HOST:PORT. {permission}".strip()
    return Issue(Code.NO_MULTICAST, Severity.WARNING, _sentence(text), hint)


def disk_low(node: str, folder: str, free: int) -> Issue:
    text = f"{node} has {format_bytes(free)} left on the disk of {folder}, where it keeps models."
    hint = "Free some space: models of the hub are shown by `hf cache ls`, and deleted by `hf cache rm`."
    return Issue(Code.DISK_LOW, Severity.WARNING, text, hint)


def folder_denied(node: str, folder: str, permission: str) -> Issue:
    """`permission`: what to do on a Mac, else empty."""
    text = f"{node} may not read {folder}, where it looks for models: the system does not permit it."
    hint = permission or "See what guards the folder on that system, or keep the models elsewhere."
    return Issue(Code.FOLDER_DENIED, Severity.WARNING, text, hint)


def few_descriptors(node: str, limit: int, needed: int) -> Issue:
    text = f"{node} may open {limit} files and connections at once; {needed} are needed for many clients."
    hint = f"Run `ulimit -n {needed}` before the node starts, or raise LimitNOFILE in its unit of systemd."
    return Issue(Code.FEW_DESCRIPTORS, Severity.WARNING, text, hint)


def memory_limit(node: str, why: str) -> Issue:
    return Issue(Code.MEMORY_LIMIT, Severity.WARNING, _sentence(f"{node} was started with too much {why}"))


def wired_memory(node: str, stranded: int) -> Issue:
    text = f"{format_bytes(stranded)} of the memory of {node} are wired, and no process that this user may look at owns them."
    hint = (
        "Look for programs of other users that hold a model, such as a service, in Activity Monitor. If there is none, "
        "restart this Mac: a program that was killed with a model in memory may leave them, and nothing else frees them."
    )
    return Issue(Code.WIRED_MEMORY, Severity.WARNING, text, hint)


def may_sleep(node: str) -> Issue:
    text = f"{node} goes to sleep when its Mac is idle, as it runs with --allow-sleep."
    hint = "Start it without --allow-sleep, or run `sudo pmset -a sleep 0` there."
    return Issue(Code.MAY_SLEEP, Severity.INFO, text, hint)


def open_api(node: str) -> Issue:
    text = f"{node} answers requests from public addresses without an API key (--open-api)."
    hint = "Unless a proxy in front of it checks its clients, start it with --api-key-file FILE."
    return Issue(Code.OPEN_API, Severity.WARNING, text, hint)


def which_node(first: str, other: str) -> Issue:
    """Of two programs named `node` in the user's shell. `other`: the next one after Pippin's; empty: Pippin's is not first."""
    text = f"`node` is {first} in this shell, which is Node.js or another program."
    if other:
        text = f"`node` is Pippin's in this shell. Called as Node.js is called, it runs {other}."
    return Issue(Code.WHICH_NODE, Severity.INFO, text, "`pippin node` is always Pippin's.")


def rosetta() -> Issue:
    text = "This terminal runs programs for Intel processors (Rosetta), and MLX does not work in them."
    hint = 'In Finder: select the terminal\'s app, choose Get Info, clear "Open using Rosetta", and open it anew.'
    return Issue(Code.ROSETTA, Severity.ERROR, text, hint)


def node_unreachable(node: str, name: str, where: str) -> Issue:
    """`where`: address and port at which a node of this name advertises itself."""
    text = f"{name} advertises itself by mDNS, but {node} cannot connect to it at {where}."
    hint = f"Allow incoming TCP connections for Python in the firewall of {name}, or at a port set with --grpc-port."
    return Issue(Code.NODE_UNREACHABLE, Severity.WARNING, text, hint)


def firewall(node: str, program: str) -> Issue:
    """The firewall of a Mac blocks connections to a program: this Python."""
    text = f"The firewall of {node} blocks incoming connections to {program}, so other nodes can't reach it."
    hint = (
        "In System Settings > Network > Firewall > Options, allow incoming connections for it, and clear "
        '"Block all incoming connections".'
    )
    return Issue(Code.FIREWALL, Severity.WARNING, text, hint)


def slow_blas(node: str, library: str) -> Issue:
    """`library`: path of a quicker BLAS of this machine; empty if it has none."""
    text = f"{node} computes on the CPU with the BLAS that comes with MLX, which is slow."
    install = "" if library else "`apt install libblis4-pthread`, then "
    found = library or "/usr/lib/$(uname -m)-linux-gnu/blis-pthread/libblas.so.3"
    return Issue(Code.SLOW_BLAS, Severity.INFO, text, f"Start it with a tuned one: {install}`LD_PRELOAD={found} node`.")


def pool_full(node: str, pool: str, seconds: float) -> Issue:
    """`pool`: the purpose of its threads."""
    text = f"On {node}, work has waited for a {pool} thread for {seconds:.0f} s: all of them are busy."
    hint = (
        "Wait, or find in its log who sends so much. If that repeats, give clients API keys, or restrict --allow-model."
    )
    return Issue(Code.POOL_FULL, Severity.WARNING, text, hint)


def _layers(load: StageReport) -> str:
    return f"layers {load.shard.start}-{load.shard.end - 1} of {load.shard.model}"


# --- all of them ----------------------------------------------------------------------------------------------------


def is_slow(path: Path) -> bool:
    """Whether a path is slow. Loopback never is: if it seems slow, the machine is busy."""
    return path.kind == "wi-fi" or (path.rtt_ms > SLOW_LINK_MS and path.kind != "loopback")


def diagnose(view: ClusterView, *, is_open: bool = False, other_secret: Sequence[PeerView] = ()) -> tuple[Issue, ...]:
    """Find all issues of a cluster as one node sees it, the most severe first.

    `is_open`: no secret is set. `other_secret`: nodes with the same cluster name and another secret.
    """
    found = [model_refused(refusal) for refusal in view.placement.refused]
    found += _node_issues(view)
    found += _load_issues(view)
    found += _link_issues(view)
    found += [secret_mismatch(other_secret)] if other_secret else []
    found += [open_cluster()] if is_open else []
    found += _version_issues(view)
    found += _own_issues(view)
    return by_severity(found)


def by_severity(issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """The most severe first."""
    gravity = list(Severity)
    return tuple(sorted(issues, key=lambda issue: gravity.index(issue.severity)))


def _own_issues(view: ClusterView) -> Iterator[Issue]:
    """What each node says of itself; none can speak of another."""
    for peer in view.peers:
        if peer.state in PRESENT:
            yield from _about(peer, peer.report.issues)


def _about(peer: PeerView, issues: Iterable[Issue]) -> Iterator[Issue]:
    for issue in issues:
        yield replace(issue, node=peer.report.info.id)


def _version_issues(view: ClusterView) -> Iterator[Issue]:
    versions: dict[str, list[str]] = {}
    for peer in view.peers:
        if peer.state in PRESENT:
            versions.setdefault(peer.report.info.version, []).append(peer.report.info.name)
    if len(versions) > 1:
        yield version_skew(versions)


def _node_issues(view: ClusterView) -> Iterator[Issue]:
    version = next((peer.report.info.version for peer in view.peers if peer.report.info.id == view.self_id), "")
    needed = {node for ring in view.placement.rings for node in ring.nodes}
    for peer in view.peers:
        yield from _about(peer, _issues_of(peer, version, needed))


def _issues_of(peer: PeerView, version: str, needed: set[str]) -> Iterator[Issue]:
    if peer.state is NodeState.FAILED:
        yield node_failed(peer, needed=peer.report.info.id in needed)
    elif peer.state is NodeState.REFUSED:
        yield version_mismatch(peer, version)
    elif peer.report.job_s >= LONG_JOB_S and peer.state is not NodeState.LEFT:
        yield compute_stuck(peer.report.info.name, peer.report.job_s)
    if peer.report.disk_error and peer.state in PRESENT:
        yield disk_failed(peer.report.info.name, peer.report.disk_error)


def _load_issues(view: ClusterView) -> Iterator[Issue]:
    for peer in view.peers:
        if peer.state is NodeState.ALIVE:  # the last report of a node that is gone is outdated
            yield from _about(peer, _issues_of_loads(peer))


def _issues_of_loads(peer: PeerView) -> Iterator[Issue]:
    for load in peer.report.stages:
        if load.state is StageState.FAILED:
            yield load_failed(peer.report.info.name, load)
        elif load.state is StageState.ENDED:
            yield ring_ended(peer.report.info.name, load)
        elif load.loads:
            yield loading(peer.report.info.name, load)


def loads_of(view: ClusterView, model: str) -> tuple[Issue, ...]:
    """How far the nodes are that fetch or load layers of a model."""
    peers = [peer for peer in view.peers if peer.state is NodeState.ALIVE]
    loads = [(peer.report.info.name, load) for peer in peers for load in peer.report.stages]
    return tuple(loading(node, load) for node, load in loads if load.loads and load.shard.model == model)


def _link_issues(view: ClusterView) -> Iterator[Issue]:
    """Find slow links, only among the hops of rings: other links carry no tokens."""
    peers = {peer.report.info.id: peer for peer in view.peers if peer.state in PRESENT}
    hops = dict.fromkeys((node, ring.after(node)) for ring in view.placement.rings for node in ring.nodes)
    for here, there in hops:
        if here not in peers or there not in peers:
            continue
        path = next((path for path in peers[here].report.paths if path.to == there), None)
        if path is not None and is_slow(path):
            yield replace(slow_link(peers[here].report.info.name, peers[there].report.info.name, path), node=here)
