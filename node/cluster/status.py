"""The JSON of GET /cluster/status: the cluster as the answering node sees it. Pure: a view in, plain data out.

`docs/status.md` explains each field and state. Lists keep their order from one answer to the next. Wanted models are
those of the placement, placed or refused, and what the users of live nodes asked to have loaded, so that a cluster that
has just started says `loading` and not `idle`.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from node.cluster.readiness import ring_state, stage_state
from node.core.addresses import join_host_port
from node.core.health import diagnose, outside
from node.core.models import Shard, Wish
from node.core.nodes import NodeInfo
from node.core.reports import RingTraffic, StageReport, StageState
from node.core.rings import Ring, StageSpec
from node.core.views import PRESENT, ClusterView, NodeState, PeerView
from node.placement.footprint import stage_bytes, stage_weights, weights_once

Json = dict[str, Any]


def build_status(view: ClusterView, *, open_cluster: bool = False, other_secret: Sequence[PeerView] = ()) -> Json:
    """`open_cluster`: no secret is set.

    `other_secret`: nodes with the same cluster name and another secret. A node that was in the cluster before is shown as
    refused instead of gone; one that is in the cluster can't be shown out of it by an advert, which anybody can forge.
    """
    other_secret = outside(view, other_secret)
    refused = {peer.report.info.id for peer in other_secret}
    view = replace(view, peers=tuple(peer for peer in view.peers if peer.report.info.id not in refused))
    peers = view.by_id
    models = [_model(model, state, view, peers) for model, state in model_states(view).items()]
    me = peers[view.self_id].report.info
    entry = peers[view.head].report.info if view.head in peers else me
    return {
        "schema": 1,
        "cluster": me.cluster,
        "state": _cluster_state(models, [ring_state(ring, peers) for ring in view.placement.rings]),
        "self": view.self_id,
        "head": view.head,
        "term": view.term,
        "epoch": view.placement.fence.epoch,
        "api": _api(entry),
        "nodes": [_node(peer, view) for peer in _in_ring_order(view)]
        + [_node(peer, view) | {"reason": "secret"} for peer in other_secret],
        "models": models,
        "warnings": [asdict(issue) for issue in diagnose(view, is_open=open_cluster, other_secret=other_secret)],
    }


def _cluster_state(models: list[Json], rings: list[str]) -> str:
    states = {model["state"] for model in models}
    if not states:
        return "idle"
    if states & {"refused", "failed"} or "failed" in rings:
        return "degraded"
    return "loading" if "loading" in states else "ready"


def _api(node: NodeInfo) -> str:
    return f"{node.api_scheme}://{join_host_port(node.addresses[0], node.api_port)}/v1" if node.addresses else ""


def _layers(model: str, layers: StageSpec | Shard) -> Json:
    return {"model": model, "start": layers.start, "end": layers.end}


# --- models ---------------------------------------------------------------------------------------------------------


def model_states(view: ClusterView) -> dict[str, str]:
    """State of each wanted model, by id: first those placed, then those refused, then those asked for."""
    peers = view.by_id
    asked = [model for peer in view.peers if peer.state in PRESENT for model in peer.report.preload]
    refused = [refusal.model for refusal in view.placement.refused]
    found: dict[str, set[str]] = {}
    for ring in view.placement.rings:
        found.setdefault(ring.model, set()).add(ring_state(ring, peers))
    states = {model: next(s for s in ("ready", "loading", "failed") if s in rings) for model, rings in found.items()}
    return states | {
        model: "refused" if model in refused else "loading" for model in refused + sorted(asked) if model not in states
    }


def _model(model: str, state: str, view: ClusterView, peers: dict[str, PeerView]) -> Json:
    rings = [ring for ring in view.placement.rings if ring.model == model]
    traffic = [each for ring in rings for each in _traffic(ring, peers)]
    refusal = next((each for each in view.placement.refused if each.model == model), None)
    wish = next((spec.wish for spec in view.placement.specs if spec.id == model), Wish())
    named = any(model in peer.report.preload for peer in peers.values() if peer.state in PRESENT)
    return {
        "id": model,
        "state": state,
        "error": {"code": refusal.code, "message": refusal.message, "hint": refusal.hint} if refusal else None,
        "context": min((ring.context for ring in rings), default=0),
        "layers": max((ring.stages[-1].end for ring in rings), default=0),
        "rings": [_ring(ring, peers) for ring in rings],
        "requests": _requests(traffic),
        "tokens_per_second": round(sum(each.tokens_per_second for each in traffic), 1),
        "prompts": {  # on their way
            "tokens": sum(each.prompt_tokens for each in traffic),
            "done": sum(each.prompt_done for each in traffic),
            "tokens_per_second": round(sum(each.prompt_tokens_per_second for each in traffic), 1),
        },
        "used_at": max((each.used_at for each in traffic), default=0),
        "keep_s": None if wish.named or named else wish.keep_s,
    }


def _ring(ring: Ring, peers: dict[str, PeerView]) -> Json:
    state, traffic = ring_state(ring, peers), _traffic(ring, peers)
    made, right = sum(each.guesses for each in traffic), sum(each.right_guesses for each in traffic)
    return {
        "id": ring.id,
        "state": "retiring" if ring.retiring and state == "ready" else str(state),
        "driver": ring.driver,
        "stages": [{"node": stage.node, "start": stage.start, "end": stage.end} for stage in ring.stages],
        "requests": _requests(traffic),
        "draft": ring.draft.model if ring.draft else None,
        "gain": ring.gain or None,
        "guesses": {  # since the ring began
            "made": made,
            "right": right,
            "accepted_share": round(right / made, 3) if made else None,
            "tau": round(made / (made - right), 2) if made > right else None,  # mean tokens of a round with a wrong one
        },
        "recomputed_tokens": sum(each.recomputed for each in traffic),
    }


def _requests(traffic: list[RingTraffic]) -> Json:
    return {"running": sum(each.running for each in traffic), "queued": sum(each.queued for each in traffic)}


def _traffic(ring: Ring, peers: dict[str, PeerView]) -> list[RingTraffic]:
    """What the ring's driver says of it; nothing once the driver is gone."""
    driver = peers.get(ring.driver)
    if driver is None or driver.state not in PRESENT:
        return []
    return [each for each in driver.report.traffic if each.ring == ring.id]


# --- nodes ----------------------------------------------------------------------------------------------------------


def _in_ring_order(view: ClusterView) -> list[PeerView]:
    """The order in which tokens pass, so that a link's other end is the next line; the others after them, by name."""
    order = list(dict.fromkeys(node for ring in view.placement.rings for node in ring.nodes))
    by_name = sorted(view.peers, key=lambda peer: (peer.report.info.name, peer.report.info.id))
    return sorted(by_name, key=lambda peer: [*order, peer.report.info.id].index(peer.report.info.id))


def _node(peer: PeerView, view: ClusterView) -> Json:
    report, info = peer.report, peer.report.info
    placed = [(ring, stage) for ring in view.placement.rings for stage in ring.stages if stage.node == info.id]
    return {
        "id": info.id,
        "name": info.name,
        "state": _node_state(peer, placed),
        "reason": "version" if peer.state is NodeState.REFUSED else "",
        "roles": _roles(peer, view),
        "version": info.version,
        "api": _api(info),
        "address": join_host_port(info.addresses[0], info.grpc_port) if info.addresses else "",
        "chip": info.chip,
        "system": info.system,
        "started_at": info.started_at // 1000,
        "memory": _memory(peer, view),
        "kv_on_disk": report.kv_disk,
        "kv_uncopied": report.kv_uncopied,
        "preload": list(report.preload),
        "layers": [_layers(ring.model, stage) for ring, stage in placed],
        "loads": [_load(stage) for stage in report.stages if stage.loads and peer.state in PRESENT],
        "idle": [_layers(shard.model, shard) for shard in report.idle],
        "speeds": [
            _layers(speed.shard.model, speed.shard)
            | {"bytes_per_second": round(speed.bytes_per_s), "prompt_tokens_per_second": round(speed.tokens_per_s, 1)}
            for speed in report.speeds
        ],
        "link": _link(peer, view) if peer.state in PRESENT else None,
        "last_seen_s": round(peer.last_seen_s, 1),
    }


def _memory(peer: PeerView, view: ClusterView) -> Json:
    """What is placed on the node, whether it is loaded yet or not, and what is left for more; else what the node uses."""
    memory, specs = peer.report.memory, {spec.id: spec for spec in view.placement.specs}
    placed = [
        (specs[ring.model], ring, stage)
        for ring in view.placement.rings
        for stage in ring.stages
        if stage.node == peer.report.info.id and ring.model in specs
    ]
    set_aside = sum(stage_bytes(*each) for each in placed)
    kv = set_aside - sum(stage_weights(*each) for each in placed)
    free = max(0, memory.usable - set_aside)
    return asdict(memory) | {"weights": weights_once(placed), "kv": kv, "free": free}


def _load(stage: StageReport) -> Json:
    """The bytes are null where they are not known: before a download begins, and while layers are read from the disk."""
    download = stage.download
    left_s = download.left_s if download else None
    return _layers(stage.shard.model, stage.shard) | {
        "state": str(stage.state),
        "progress": round(stage.progress, 3),
        "done_bytes": download.done if download else None,
        "total_bytes": download.total if download else None,
        "bytes_per_second": round(download.bytes_per_s) if download and download.bytes_per_s else None,
        "seconds_left": round(left_s) if left_s is not None else None,
    }


def _node_state(peer: PeerView, placed: list[tuple[Ring, StageSpec]]) -> str:
    if peer.state is not NodeState.ALIVE:
        return str(peer.state)
    if peer.report.draining:
        return "draining" if placed or peer.report.stages or peer.report.idle else "drained"
    if any(report.state is StageState.FAILED for report in peer.report.stages):
        return "error"
    if not placed:
        return "idle"
    return "ready" if all(stage_state(peer, ring, stage) is StageState.READY for ring, stage in placed) else "loading"


def _roles(peer: PeerView, view: ClusterView) -> list[str]:
    """None of a node that is gone: it may come back to other roles."""
    if peer.state not in PRESENT:
        return []
    node = peer.report.info.id
    rings = view.placement.rings
    plays = {
        "head": node == view.head,
        "driver": any(ring.driver == node for ring in rings),
        "stage": any(node in ring.nodes for ring in rings),
        "gateway": True,
    }
    return [role for role, played in plays.items() if played]


def _link(peer: PeerView, view: ClusterView) -> Json | None:
    """To the next node of the first ring in which it has one."""
    node, paths = peer.report.info.id, {path.to: path for path in peer.report.paths}
    rings = [ring for ring in view.placement.rings if node in ring.nodes and len(ring.nodes) > 1]
    path = next((paths[ring.after(node)] for ring in rings if ring.after(node) in paths), None)
    if path is None:
        return None
    return {
        "to": path.to,
        "interface": path.interface,
        "kind": path.kind,
        "rtt_ms": round(path.rtt_ms, 2),
        "bytes_per_second": round(path.bytes_per_s),
    }
