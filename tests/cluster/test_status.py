"""The status JSON. Clients depend on `golden/status.json` beside the CLI's tests: change it with care."""

import json
import pathlib
from dataclasses import replace

import pytest

from node.cluster.status import build_status
from node.core.models import KvCost, ModelSpec, ModelVersion, Shard, Wish
from node.core.nodes import Memory, NodeInfo
from node.core.reports import Download, NodeReport, Path, RingTraffic, StageReport, StageState
from node.core.rings import Fence, Placement, Refusal, Ring, StageSpec
from node.core.views import ClusterView, NodeState, PeerView

GOLDEN = pathlib.Path(__file__).parents[1] / "cli" / "golden" / "status.json"
FETCHING, READY, LOADING, FAILED = StageState.FETCHING, StageState.READY, StageState.LOADING, StageState.FAILED


def peer(node, state=NodeState.ALIVE, *, loads=(), rings=(), paths=(), preload=(), addresses=("10.0.0.1",), seen=0.0):
    info = NodeInfo(f"id-{node}", 1, f"mini-{node}", "home", "0.1.0", 1, addresses, 50000, 52415, "Apple M4")
    report = NodeReport(
        info, Memory(16 * 10**9, 12 * 10**9, 5 * 10**9), stages=loads, traffic=rings, paths=paths, preload=preload
    )
    return PeerView(report, state, seen)


def ring(*nodes, name="r1", model="m", context=4096):
    stages = tuple(StageSpec(f"id-{node}", 8 * at, 8 * at + 8) for at, node in enumerate(nodes))
    return Ring(name, ModelVersion(model), stages, context, 4)


def load(start, state=READY, name="r1", model="m", progress=1.0):
    return StageReport(name, Shard(ModelVersion(model), start, start + 8), state, progress)


def view(*peers, rings=(), refused=(), head="id-1"):
    return ClusterView("id-1", 7, head, peers, Placement(Fence(7, 3), head, rings, refused))


def home_view():
    """A typical cluster: three nodes of one ring, one of them loading, and a node of another version."""
    model = "mlx-community/Qwen3-32B-4bit"
    spans = {"mini-1": (0, 22), "mini-2": (22, 44), "mini-3": (44, 64)}
    hops = {
        "mini-1": Path("b2", "169.254.9.2", 0.31, "en5", "thunderbolt", 912680550.4),
        "mini-2": Path("c3", "192.168.1.3", 8.1, "en1", "wi-fi", 31457280.0),
        "mini-3": Path("a1", "192.168.1.1", 0.612, "en0", "ethernet", 117440512.0),
    }
    used = {"mini-1": 98 * 2**30 // 10, "mini-2": 99 * 2**30 // 10, "mini-3": 62 * 2**30 // 10}
    peers = []
    for at, (name, (start, end)) in enumerate(spans.items(), start=1):
        info = NodeInfo(
            f"{'abc'[at - 1]}{at}", at, name, "home", "0.1.0", 1, (f"192.168.1.{at}",), 50000 + at, 52415, "Apple M4"
        )
        info = replace(info, system="macOS 26.2")
        loading = name == "mini-3"
        load = StageReport("r1", Shard(ModelVersion(model), start, end), READY, 1.0)
        download = Download(58 * 2**28 // 10, 5 * 2**29, 32 * 2**20)
        loads = (replace(load, state=FETCHING, progress=0.58, download=download) if loading else load,)
        rings = (RingTraffic("r1", 2, 0, 21.41),) if at == 1 else ()
        memory = Memory(24 * 2**30, 16 * 2**30, used[name])
        report = NodeReport(info, memory, 7, "b2", Fence(7, 3), loads, rings, paths=(hops[name],))
        peers.append(PeerView(report, NodeState.ALIVE, 0.0 if at == 2 else 0.44))
    stranger = NodeInfo("d4", 1, "mini-4", "home", "0.2.0", 2, ("fd00::4",), 50004, 52415)
    peers.append(PeerView(NodeReport(stranger, Memory(0, 0)), NodeState.REFUSED, 1.0, "protocol 2, not 1"))
    stages = tuple(StageSpec(f"{'abc'[at]}{at + 1}", *span) for at, span in enumerate(spans.values()))
    spec = ModelSpec(ModelVersion(model), (220 * 2**20,) * 64, 2**30, (KvCost(2048),) * 64, tuple(range(1, 64)), 40960)
    placement = Placement(Fence(7, 3), "b2", (Ring("r1", ModelVersion(model), stages, 32768, 4),), specs=(spec,))
    return ClusterView("b2", 7, "b2", tuple(peers), placement)


def test_a_node_that_failed_while_it_loaded_loads_no_more():
    loads = (load(0, LOADING),)
    nodes = build_status(view(peer("1", loads=loads), peer("2", NodeState.FAILED, loads=loads)))["nodes"]
    assert [len(node["loads"]) for node in nodes] == [1, 0]


def test_golden():
    status = build_status(home_view())
    assert json.dumps(status, indent=2) == GOLDEN.read_text().rstrip("\n")


# --- the cluster's state --------------------------------------------------------------------------------------------

TWO = (ring("1", "2"),)
STATES = {
    "nothing wanted": (view(peer("1")), "idle", {}),
    "asked for, not yet placed": (view(peer("1", preload=("m",))), "loading", {"m": "loading"}),
    "asked for by a node that is gone": (view(peer("1"), peer("2", NodeState.LEFT, preload=("m",))), "idle", {}),
    "all ready": (view(peer("1", loads=(load(0),)), peer("2", loads=(load(8),)), rings=TWO), "ready", {"m": "ready"}),
    "one loads": (
        view(peer("1", loads=(load(0),)), peer("2", loads=(load(8, LOADING),)), rings=TWO),
        "loading",
        {"m": "loading"},
    ),
    "one has not begun": (view(peer("1", loads=(load(0),)), peer("2"), rings=TWO), "loading", {"m": "loading"}),
    "loads of another ring don't count": (
        view(peer("1", loads=(load(0, name="r0"),)), rings=(ring("1"),)),
        "loading",
        {"m": "loading"},
    ),
    "a load failed": (
        view(peer("1", loads=(load(0),)), peer("2", loads=(load(8, FAILED),)), rings=TWO),
        "degraded",
        {"m": "failed"},
    ),
    "a suspect still serves": (
        view(peer("1", loads=(load(0),)), peer("2", NodeState.SUSPECT, loads=(load(8),)), rings=TWO),
        "ready",
        {"m": "ready"},
    ),
    "a node failed": (
        view(peer("1", loads=(load(0),)), peer("2", NodeState.FAILED, loads=(load(8),)), rings=TWO),
        "degraded",
        {"m": "failed"},
    ),
    "a node is unknown": (view(peer("1", loads=(load(0),)), rings=TWO), "degraded", {"m": "failed"}),
    "a failed node that no ring needs": (
        view(peer("1", loads=(load(0),)), peer("2", NodeState.FAILED), rings=(ring("1"),)),
        "ready",
        {"m": "ready"},
    ),
    "one replica lost": (
        view(peer("1", loads=(load(0),)), peer("2", NodeState.FAILED), rings=(ring("1"), ring("2", name="r2"))),
        "degraded",
        {"m": "ready"},
    ),
    "a second replica loads": (
        view(peer("1", loads=(load(0),)), peer("2"), rings=(ring("1"), ring("2", name="r2"))),
        "ready",
        {"m": "ready"},
    ),
    "refused": (view(peer("1"), refused=(Refusal("m", "no_capacity", "too big"),)), "degraded", {"m": "refused"}),
    "one of two models loads": (
        view(peer("1", loads=(load(0),)), rings=(ring("1"), ring("1", name="r2", model="n"))),
        "loading",
        {"m": "ready", "n": "loading"},
    ),
}


@pytest.mark.parametrize(("seen", "state", "models"), STATES.values(), ids=STATES.keys())
def test_state(seen, state, models):
    status = build_status(seen)
    assert status["state"] == state
    assert {model["id"]: model["state"] for model in status["models"]} == models


# --- nodes ----------------------------------------------------------------------------------------------------------


def nodes(seen):
    return {node["name"]: node for node in build_status(seen)["nodes"]}


@pytest.mark.parametrize(
    ("loads", "rings", "state"),
    [
        ((), (), "idle"),
        ((), TWO, "loading"),
        ((load(0, StageState.FETCHING),), TWO, "loading"),
        ((load(0),), TWO, "ready"),
        ((load(0, FAILED),), TWO, "error"),
        ((load(0), load(0, LOADING, "r2", "n")), (*TWO, ring("1", name="r2", model="n")), "loading"),
    ],
)
def test_state_of_a_live_node(loads, rings, state):
    assert nodes(view(peer("1", loads=loads), rings=rings))["mini-1"]["state"] == state


@pytest.mark.parametrize(
    ("loads", "rings", "state"),
    [((load(0),), TWO, "draining"), ((load(0),), (), "draining"), ((), TWO, "draining"), ((), (), "drained")],
)
def test_state_of_a_node_that_is_taken_out_of_use(loads, rings, state):
    here = peer("1", loads=loads)
    seen = view(PeerView(replace(here.report, draining=True), here.state), rings=rings)
    assert nodes(seen)["mini-1"]["state"] == state


@pytest.mark.parametrize("state", ["suspect", "failed", "left", "refused"])
def test_state_of_another_node_is_the_peers(state):
    assert nodes(view(peer("1"), peer("2", NodeState(state))))["mini-2"]["state"] == state


def test_roles():
    seen = nodes(view(peer("1"), peer("2"), peer("3"), peer("4", NodeState.FAILED), rings=(ring("2", "3"),)))
    assert seen["mini-1"]["roles"] == ["head", "gateway"]
    assert seen["mini-2"]["roles"] == ["driver", "stage", "gateway"]
    assert seen["mini-3"]["roles"] == ["stage", "gateway"]
    assert seen["mini-4"]["roles"] == []


def test_nodes_come_in_ring_order_then_by_name():
    seen = nodes(view(peer("4"), peer("1"), peer("3"), peer("2"), rings=(ring("3", "2"),)))
    assert list(seen) == ["mini-3", "mini-2", "mini-1", "mini-4"]


def test_link_is_to_the_next_of_the_ring_and_closes_it():
    to1, to2 = (Path(f"id-{node}", "10.0.0.9", 0.456, "en0", "ethernet") for node in "12")
    seen = nodes(view(peer("1", paths=(to1, to2)), peer("2", paths=(to1, to2)), peer("3", paths=(to1,)), rings=TWO))
    link = {"to": "id-2", "interface": "en0", "kind": "ethernet", "rtt_ms": 0.46, "bytes_per_second": 0}
    assert seen["mini-1"]["link"] == link
    assert seen["mini-2"]["link"]["to"] == "id-1"
    assert seen["mini-3"]["link"] is None


def test_a_ring_of_one_has_no_link():
    assert nodes(view(peer("1", paths=(Path("id-1", "", 1.0),)), rings=(ring("1"),)))["mini-1"]["link"] is None


def test_address_and_layers():
    node = nodes(view(peer("1", addresses=("fd00::1", "10.0.0.1")), rings=TWO))["mini-1"]
    assert node["address"] == "[fd00::1]:50000"
    assert node["layers"] == [{"model": "m", "start": 0, "end": 8}]
    assert nodes(view(peer("1", addresses=())))["mini-1"]["address"] == ""


# --- models and the rest --------------------------------------------------------------------------------------------


def test_work_of_all_rings_is_summed_from_their_drivers():
    peers = (
        peer("1", rings=(RingTraffic("r1", 2, 1, 10.04), RingTraffic("old", 9, 9, 9.0))),
        peer("2", rings=(RingTraffic("r2", 3, 0, 20.0),)),
    )
    rings = (ring("1", context=8192), ring("2", name="r2", context=4096))
    (model,) = build_status(view(*peers, rings=rings))["models"]
    assert model["requests"] == {"running": 5, "queued": 1}
    assert (model["tokens_per_second"], model["context"], model["layers"]) == (30.0, 4096, 8)
    gone = view(peers[0], PeerView(peers[1].report, NodeState.FAILED), rings=rings)
    assert build_status(gone)["models"][0]["requests"] == {"running": 2, "queued": 1}


def test_how_far_prompts_are():
    rings = (ring("1"), ring("2", name="r2"))
    work = {"prompt_tokens": 4000, "prompt_done": 300, "prompt_tokens_per_second": 20.04}
    peers = (peer("1", rings=(RingTraffic("r1", 1, **work),)), peer("2", rings=(RingTraffic("r2", 1, **work),)))
    (model,) = build_status(view(*peers, rings=rings))["models"]
    assert model["prompts"] == {"tokens": 8000, "done": 600, "tokens_per_second": 40.1}


def test_how_long_a_model_may_be_idle():
    rings = (ring("1"), ring("1", name="r2"))
    for wish, preload, keep_s in (
        (Wish(), (), None),
        (Wish(keep_s=5), (), 5),
        (Wish(named=True, keep_s=5), (), None),
        (Wish(keep_s=5), ("m",), None),
    ):
        peers = (peer("1", rings=(RingTraffic("r1", used_at=7), RingTraffic("r2", used_at=9)), preload=preload),)
        seen = view(*peers, rings=rings)
        spec = ModelSpec(ModelVersion("m"), (1,) * 8, 1, (KvCost(1),) * 8, (0, 8), 4096, wish=wish)
        seen = replace(seen, placement=replace(seen.placement, specs=(spec,)))
        (model,) = build_status(seen)["models"]
        assert (model["keep_s"], model["used_at"]) == (keep_s, 9)


def test_each_ring_tells_how_many_guesses_were_right():
    peers = (peer("1", rings=(RingTraffic("r1", guesses=10, right_guesses=8), RingTraffic("r2", guesses=3))),)
    rings = tuple(ring("1", name=name) for name in ("r1", "r2", "r3"))
    (model,) = build_status(view(*peers, rings=rings))["models"]
    assert [each["guesses"] for each in model["rings"]] == [
        {"made": 10, "right": 8, "accepted_share": 0.8, "tau": 5.0},
        {"made": 3, "right": 0, "accepted_share": 0.0, "tau": 1.0},
        {"made": 0, "right": 0, "accepted_share": None, "tau": None},
    ]


def test_each_ring_tells_how_many_tokens_were_computed_again():
    peers = (peer("1", rings=(RingTraffic("r1", recomputed=70),)),)
    (model,) = build_status(view(*peers, rings=(ring("1"), ring("1", name="r2"))))["models"]
    assert [each["recomputed_tokens"] for each in model["rings"]] == [70, 0]


def test_each_ring_tells_its_state_and_its_work():
    peers = (
        peer("1", loads=(load(0), load(0, name="r2")), rings=(RingTraffic("r1", 2, 1), RingTraffic("r2", 1, 0))),
        peer("2", loads=(load(0, LOADING, name="r3"),)),
    )
    rings = (ring("1"), replace(ring("1", name="r2"), retiring=True), ring("2", name="r3"))
    (model,) = build_status(view(*peers, rings=rings))["models"]
    assert [(each["id"], each["state"]) for each in model["rings"]] == [
        ("r1", "ready"),
        ("r2", "retiring"),
        ("r3", "loading"),
    ]
    assert [each["requests"] for each in model["rings"]] == [
        {"running": 2, "queued": 1},
        {"running": 1, "queued": 0},
        {"running": 0, "queued": 0},
    ]


def test_api_is_the_heads():
    seen = view(peer("1"), peer("2", addresses=("10.0.0.2",)), head="id-2")
    assert build_status(seen)["api"] == "http://10.0.0.2:52415/v1"
    assert build_status(view(peer("1"), head=""))["api"] == "http://10.0.0.1:52415/v1"


def test_open_cluster_is_told_when_asked():
    assert build_status(view(peer("1")))["warnings"] == []
    (warning,) = build_status(view(peer("1")), open_cluster=True)["warnings"]
    assert (warning["code"], warning["severity"]) == ("open-cluster", "info")


def test_nodes_of_another_secret_are_shown_as_refused():
    """Also a node that was in the cluster before. But an advert never removes a node that is here."""
    strangers = [peer(node, NodeState.REFUSED) for node in ("1", "2", "9")]
    status = build_status(view(peer("1"), peer("2", NodeState.FAILED)), other_secret=strangers)
    shown = [(node["id"], node["state"], node["reason"]) for node in status["nodes"]]
    assert shown == [("id-1", "idle", ""), ("id-2", "refused", "secret"), ("id-9", "refused", "secret")]
    assert [warning["code"] for warning in status["warnings"]] == ["secret-mismatch"]


def test_memory_that_is_set_aside_is_not_free():
    """The same figures as in the error for a model that does not fit."""
    spec = ModelSpec(ModelVersion("m"), (2**20,) * 8, 3 * 2**20, (KvCost(1024),) * 8, (4,), 8192)
    seen = view(peer("1"), peer("2"), rings=(ring("1", context=4096),))
    status = build_status(replace(seen, placement=replace(seen.placement, specs=(spec,))))
    holder, other = (node["memory"] for node in status["nodes"])
    assert holder["weights"] == 11 * 2**20
    assert holder["kv"] == (8 * 16 + 64 + 1 + 16) * 2**20  # the last three: working memory
    assert holder["free"] == holder["usable"] - holder["weights"] - holder["kv"]
    assert (other["weights"], other["kv"], other["free"]) == (0, 0, other["usable"])


def test_weights_that_two_rings_have_count_once():
    """While a ring replaces another, layers that both have are in memory once; the placement sets aside room for both."""
    spec = ModelSpec(ModelVersion("m"), (2**20,) * 16, 3 * 2**20, (KvCost(1024),) * 16, (4,), 8192)
    old = ring("1", context=4096)
    new = replace(ring("1", "2", context=4096), id="m@2")
    seen = view(peer("1"), peer("2"), rings=(replace(old, retiring=True), new))
    status = build_status(replace(seen, placement=replace(seen.placement, specs=(spec,))))
    holder, other = (node["memory"] for node in status["nodes"])
    assert holder["weights"] == 11 * 2**20
    assert other["weights"] == 8 * 2**20
    alone = build_status(replace(seen, placement=replace(seen.placement, specs=(spec,), rings=(old,))))
    assert holder["free"] < alone["nodes"][0]["memory"]["free"]
