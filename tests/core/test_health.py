import pathlib
from dataclasses import replace

import pytest

from node.core.health import diagnose, gpu_failed, is_slow, loads_of, outside, secret_mismatch
from node.core.models import ModelVersion, Shard
from node.core.nodes import Memory, NodeInfo
from node.core.reports import Download, NodeReport, Path, Severity, StageReport, StageState
from node.core.rings import Placement, Refusal, Ring, StageSpec
from node.core.views import PROCESS_ENDED, ClusterView, NodeState, PeerView
from node.core.warning_codes import Code


def peer(name, state=NodeState.ALIVE, *, loads=(), paths=(), version="0.1.0", seen=0.0, reason=""):
    info = NodeInfo(f"id-{name}", 1, name, "home", version, 1, ("10.0.0.1",), 1, 2)
    report = NodeReport(info, Memory(16, 12), stages=loads, paths=paths)
    return PeerView(report, state, seen, reason)


def view(*peers, rings=(), refused=(), **more):
    return ClusterView("id-a", 1, "id-a", peers, Placement(rings=rings, refused=refused), **more)


def ring(*names):
    return Ring(
        "r", ModelVersion("m"), tuple(StageSpec(f"id-{name}", at, at + 1) for at, name in enumerate(names)), 4096, 4
    )


def load(state, progress=0.0, error=""):
    return StageReport("r", Shard(ModelVersion("m"), 2, 5), state, progress, error)


def only(issues):
    assert len(issues) == 1, issues
    return issues[0]


def test_a_healthy_cluster_has_no_issues():
    fast = Path("id-b", "10.0.0.2", 0.4, "en0", "ethernet")
    assert diagnose(view(peer("a", paths=(fast,)), peer("b"), rings=(ring("a", "b"),))) == ()


@pytest.mark.parametrize(
    ("kind", "rtt", "slow"),
    [
        ("ethernet", 0.3, False),
        ("ethernet", 5.0, False),
        ("", 5.1, True),
        ("wi-fi", 1.0, True),
        ("thunderbolt", 9.0, True),
    ],
)
def test_what_counts_as_slow(kind, rtt, slow):
    assert is_slow(Path("x", "", rtt, "", kind)) is slow


def test_slow_links_are_told_of_the_hops_in_use_only():
    wifi = Path("id-b", "10.0.0.2", 8.1, "en1", "wi-fi")
    peers = (peer("a", paths=(wifi,)), peer("b"), peer("c"))
    issue = only(diagnose(view(*peers, rings=(ring("a", "b"),))))
    assert (issue.code, issue.severity) == (Code.SLOW_LINK, Severity.WARNING)
    assert issue.text == "a reaches b over Wi-Fi in 8.1 ms per token."
    assert issue.hint == "Plug in Ethernet or Thunderbolt."
    assert diagnose(view(*peers, rings=(ring("a"),))) == ()
    assert diagnose(view(*peers, rings=(ring("b", "c"),))) == ()


def test_a_hop_of_two_rings_is_told_once():
    wifi = Path("id-b", "10.0.0.2", 8.1, "en1", "wi-fi")
    only(diagnose(view(peer("a", paths=(wifi,)), peer("b"), rings=(ring("a", "b"), ring("a", "b")))))


def test_a_slow_wired_hop_names_its_path():
    slow = Path("id-b", "10.0.0.2", 21.0, "utun3", "")
    issue = only(diagnose(view(peer("a", paths=(slow,)), peer("b"), rings=(ring("a", "b"),))))
    assert issue.text == "a reaches b over utun3 in 21.0 ms per token."


def test_version_mismatch_names_both_versions():
    issue = only(diagnose(view(peer("a"), peer("b", NodeState.REFUSED, version="0.2.0"))))
    assert issue.code == Code.VERSION_MISMATCH
    assert issue.text == "b at 10.0.0.1:1 has not joined: it runs 0.2.0, the cluster runs 0.1.0."


def test_a_node_refused_for_another_reason_says_it():
    issue = only(diagnose(view(peer("a"), peer("b", NodeState.REFUSED, reason="it has another secret"))))
    assert issue.text == "b at 10.0.0.1:1 has not joined: it has another secret."


@pytest.mark.parametrize(("needed", "severity"), [(True, Severity.ERROR), (False, Severity.WARNING)])
def test_a_failed_node_is_graver_when_a_ring_needs_it(needed, severity):
    rings = (ring("a", "b"),) if needed else ()
    issue = only(diagnose(view(peer("a"), peer("b", NodeState.FAILED, seen=12.3, reason="reset"), rings=rings)))
    assert (issue.code, issue.severity) == (Code.NODE_FAILED, severity)
    assert issue.text == "b has not answered for 12 s: reset."
    assert "power" in issue.hint


def test_a_node_whose_process_has_ended_is_to_be_started():
    issue = only(diagnose(view(peer("a"), peer("b", NodeState.FAILED, reason=PROCESS_ENDED))))
    assert issue.hint == "Start it again."


@pytest.mark.parametrize(("seconds", "told"), [(0.0, False), (14.0, False), (15.0, True), (59.0, True)])
def test_a_node_that_is_long_at_one_computation_is_told_of(seconds, told):
    busy = peer("b")
    found = diagnose(view(peer("a"), replace(busy, report=replace(busy.report, job_s=seconds))))
    assert [issue.code for issue in found] == [Code.COMPUTE_STUCK] * told
    assert all(f"{seconds:.0f} s" in issue.text for issue in found)


def test_a_node_that_said_goodbye_is_no_issue():
    assert diagnose(view(peer("a"), peer("b", NodeState.LEFT))) == ()


@pytest.mark.parametrize(
    ("code", "issued"), [("no_capacity", Code.NO_CAPACITY), ("model_unsupported", Code.MODEL_REFUSED)]
)
def test_refused_models_keep_the_words_of_the_placement(code, issued):
    issue = only(diagnose(view(peer("a"), refused=(Refusal("m", code, "m needs 18.4 GB.", "Add a Mac."),))))
    assert (issue.code, issue.severity, issue.text, issue.hint) == (
        issued,
        Severity.ERROR,
        "m needs 18.4 GB.",
        "Add a Mac.",
    )


def test_loads_tell_progress_and_failure():
    peers = (peer("a", loads=(load(StageState.LOADING, 0.58),)), peer("b", loads=(load(StageState.FAILED, 0, "x: y"),)))
    failed, loading = diagnose(view(*peers))
    assert (failed.code, failed.text) == (Code.LOAD_FAILED, "b could not load layers 2-4 of m: x: y.")
    assert (loading.code, loading.text) == (Code.LOADING, "a has loaded 58 % of layers 2-4 of m.")
    download = replace(load(StageState.FETCHING, 0.25), download=Download(2**20, 2**22, 2**18))
    assert [issue.text for issue in loads_of(view(peer("a", loads=(download,))), "m")] == [
        "a has fetched 25 % of layers 2-4 of m: 1.0 of 4.0 MB, 256.0 KB/s, 12 s left."
    ]
    assert not loads_of(view(peer("a", loads=(download,))), "other")
    assert only(
        diagnose(
            view(
                peer("a", NodeState.SUSPECT, loads=(load(StageState.FAILED),)),
                peer("b", loads=(load(StageState.FETCHING),)),
            )
        )
    )


def test_a_ring_that_has_ended_is_told_with_its_reason():
    issue = only(diagnose(view(peer("a", loads=(load(StageState.ENDED, 0, "peer_unavailable: b hung up"),)))))
    assert (issue.code, issue.severity) == (Code.RING_ENDED, Severity.WARNING)
    assert issue.text == "A ring of m ended at a: peer_unavailable: b hung up."


def test_gravest_first():
    peers = (peer("a", loads=(load(StageState.LOADING),)), peer("b", NodeState.FAILED))
    issues = diagnose(view(*peers, refused=(Refusal("m", "no_capacity", "t"),)), is_open=True)
    assert [issue.code for issue in issues] == [Code.NO_CAPACITY, Code.NODE_FAILED, Code.LOADING, Code.OPEN_CLUSTER]


def test_nodes_of_another_secret_are_one_issue():
    others = [peer(f"mini-{number}", NodeState.REFUSED, reason="it has no secret") for number in range(7)]
    issue = only(diagnose(view(peer("a")), other_secret=others))
    assert (issue.code, issue.severity) == (Code.SECRET_MISMATCH, Severity.WARNING)
    assert "mini-0 at 10.0.0.1:1 (it has no secret), mini-1 at" in issue.text
    assert issue.text.endswith("mini-4 at 10.0.0.1:1 (it has no secret) and 2 more.")
    by_address = replace(others[0].report.info, name="10.0.0.1:1")
    issue = only(secret_mismatch([replace(others[0], report=replace(others[0].report, info=by_address))]))
    assert issue.text.endswith(": 10.0.0.1:1 (it has no secret).")


def test_a_node_of_another_secret_that_only_another_node_has_heard_is_told():
    stranger = peer("x", NodeState.REFUSED, reason="it has no secret")
    told = secret_mismatch([stranger])
    other = peer("b")
    other = replace(other, report=replace(other.report, issues=told))
    issue = only(diagnose(view(peer("a"), other)))
    assert (issue.code, issue.node) == (Code.SECRET_MISMATCH, "id-b")
    assert only(diagnose(view(peer("a"), other), other_secret=[stranger])) == told[0], "once, if both have heard it"
    assert outside(view(peer("a"), peer("x")), [stranger]) == []


def test_a_node_that_can_t_write_says_so():
    full = peer("a")
    full = replace(full, report=replace(full.report, disk_error="No space left on device"))
    issue = only(diagnose(view(full)))
    assert (issue.code, issue.severity) == (Code.DISK_FAILED, Severity.WARNING)
    assert issue.text.endswith("does not become head: No space left on device.")
    assert diagnose(view(replace(full, state=NodeState.LEFT))) == ()


def test_nodes_of_different_versions():
    issue = only(diagnose(view(peer("a"), peer("b"), peer("c", version="0.2.0"))))
    assert (issue.code, issue.severity) == (Code.VERSION_SKEW, Severity.INFO)
    assert issue.text == "The nodes run 2 versions: 0.1.0 on a, b; 0.2.0 on c."
    assert diagnose(view(peer("a"), peer("c", NodeState.LEFT, version="0.2.0"))) == ()


def test_nodes_with_other_versions_of_what_computes():
    ones, others = "mlx 0.32.4, mlx-lm 0.32.2", "mlx 0.32.4, mlx-lm 0.32.3"
    peers = [with_libraries(peer("a"), ones), with_libraries(peer("b"), others), with_libraries(peer("c"), "")]
    issue = only(diagnose(view(*peers)))
    assert issue.code == Code.VERSION_SKEW
    assert issue.text == f"The nodes run 3 versions: 0.1.0 on c; 0.1.0 ({ones}) on a; 0.1.0 ({others}) on b."
    assert diagnose(view(peers[0], peers[2])) == ()


def with_libraries(node, libraries):
    return replace(node, report=replace(node.report, info=replace(node.report.info, libraries=libraries)))


def test_what_a_node_says_of_itself_is_told_while_it_is_here():
    """A node can't put words into another one's mouth."""
    full = Code.DISK_LOW.issue(node="b", folder="/", free="1.0 GB")
    b = peer("b")
    b = replace(b, report=replace(b.report, issues=(replace(full, node="id-a"),)))
    assert diagnose(view(peer("a"), b)) == (replace(full, node="id-b"),)
    assert Code.DISK_LOW not in {issue.code for issue in diagnose(view(peer("a"), replace(b, state=NodeState.FAILED)))}


def test_issues_name_the_node_that_they_are_about():
    gone = peer("b", NodeState.FAILED, seen=5.0)
    busy = peer("a", loads=(load(StageState.LOADING, 0.5),))
    assert {issue.code: issue.node for issue in diagnose(view(busy, gone))} == {
        "node-failed": "id-b",
        "loading": "id-a",
    }


@pytest.mark.parametrize(("count", "times"), [(1, "once"), (3, "3 times")])
def test_a_gpu_that_has_failed(count: int, times: str) -> None:
    issue = gpu_failed("mini-2", count, "The GPU failed: it hangs")
    assert (issue.code, issue.severity) == (Code.GPU_FAILED, Severity.WARNING)
    assert (
        issue.text
        == f"mini-2 has seen its GPU fail {times} since it started, the last time so: The GPU failed: it hangs."
    )


def test_every_code_is_provoked_in_a_test():
    tests = "".join(path.read_text() for path in pathlib.Path(__file__).parents[1].glob("*/test_*.py"))
    assert [code.name for code in Code if f"Code.{code.name}" not in tests] == []


def test_a_purpose_whose_threads_are_all_busy_is_a_warning():
    found = Code.POOL_FULL.issue(node="mini-1", pool="download", seconds=31.4)
    assert (found.code, found.severity) == (Code.POOL_FULL, Severity.WARNING)
    assert found.text == "On mini-1, work has waited for a download thread for 31 s: all of them are busy."
    assert found.hint
