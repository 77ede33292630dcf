import copy
import json
import time

import pytest

from node.cli.__main__ import main
from node.cli.client import KeyRefused, NoNode, RequestRefused, StatusFailed
from node.cli.terminal import CLEAR_LINE, REPEAT_S, LogPace
from node.cli.wait import POLL_S, SETTLED_S, Target, model_id, until_settled, wait


class FakeApi:
    """Returns its answers in turn; the last one repeats."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.timeouts = []

    def status(self, timeout):
        self.timeouts.append(timeout)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Time:
    now = 100.0

    def clock(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


def run(api, timeout=10.0):
    time, told = Time(), []
    lack = wait(api, Target().missing, timeout, told.append, clock=time.clock, pause=time.pause)
    return lack, told, time.now - 100.0


def test_ready_at_once(ready):
    assert run(FakeApi(ready)) == ("", [""], 0.0)


def test_waits_for_a_node_to_start_and_load(status):
    loaded = copy.deepcopy(status)
    loaded["state"] = loaded["models"][0]["state"] = "ready"
    api = FakeApi(NoNode("No node answers."), NoNode("No node answers."), status, loaded)
    lack, told, took = run(api)
    assert (lack, took) == ("", 0.75)
    assert told[0] == "waiting: No node answers"
    assert told[1].startswith(
        "waiting: mini-3 has fetched 58 % of layers 44-63 of mlx-community/Qwen3-32B-4bit: 1.4 of"
    )
    assert told[2:] == [""]


def test_of_several_loads_the_one_that_takes_longest_is_told(status):
    model, (first, _, last, *_) = "mlx-community/Qwen3-32B-4bit", status["nodes"]
    first["loads"] = [last["loads"][0] | {"progress": 0.99}]
    load = {"severity": "info", "code": "loading", "hint": ""}
    ours, theirs = (load | {"node": node["id"], "text": f"{node['name']} has loaded a part."} for node in (first, last))
    status["warnings"] = [ours, theirs]
    assert Target().missing(status) == "mini-3 has loaded a part (and 1 more node)"
    status["models"][0]["state"] = "failed"
    assert Target().missing(status) == f"{model} is failed; mini-3 has loaded a part (and 1 more node)"
    status["warnings"] = [
        ours,
        {"severity": "error", "code": "disk-full", "text": "mini-3 is full.", "hint": "Free some."},
    ]
    assert Target().missing(status) == f"{model} is failed; mini-3 is full. Free some"


def test_time_is_up(status):
    lack, told, took = run(FakeApi(status))
    assert lack.startswith("mini-3 has fetched 58 % of layers 44-63 of mlx-community/Qwen3-32B-4bit")
    assert told[-1] == ""
    assert 9.5 < took <= 10.0


def refused(status, code):
    """The model of a status is refused."""
    found = copy.deepcopy(status)
    found["state"] = "degraded"
    error = {"code": code, "message": "It is damaged.", "hint": "Fetch it again."}
    found["models"][0] |= {"state": "refused", "rings": [], "error": error}
    return found


def settled(target, *answers, timeout=600.0):
    """As `run`, with what ends the wait."""
    time = Time()
    api = FakeApi(*answers)
    lack = wait(api, target.missing, timeout, lambda _: None, target.refused, clock=time.clock, pause=time.pause)
    return lack, time.now - 100.0


@pytest.mark.parametrize("code", ["model_broken", "model_unsupported", "model_not_found", "no_capacity"])
@pytest.mark.parametrize("target", [Target(), Target(3, "mlx-community/Qwen3-32B-4bit")])
def test_a_refusal_that_lasts_ends_the_wait(status, target, code):
    with pytest.raises(RequestRefused, match=r"^It is damaged\. Fetch it again\.$"):
        settled(target, NoNode("No node answers."), refused(status, code))


def test_what_may_come_by_itself_is_waited_for(status, ready):
    no = refused(status, "model_broken")
    passing = [no] * int(SETTLED_S / POLL_S - 1)
    assert settled(Target(), *passing, status, *passing, ready)[0] == "", "it was refused for a moment"
    for target, answer in (
        (Target(), refused(status, "hub_unavailable")),  # the head tries again
        (Target(4), no),  # a node may bring the model
        (Target(model="other"), no),
    ):
        lack, took = settled(target, answer, timeout=60)
        assert lack
        assert took > 59


def test_the_commands_end_with_the_refusal(node, status, capsys, monkeypatch):
    monkeypatch.setattr("node.cli.wait.SETTLED_S", 0.0)
    no = refused(status, "model_broken")
    node.answers = [no]
    assert main(["wait", "--api", node.url]) == 1
    assert capsys.readouterr().err.endswith("cluster: It is damaged. Fetch it again.\n")
    node.answers = [{"model": no["models"][0]["id"]}, no]
    assert main(["load", "m", "--api", node.url]) == 1
    assert capsys.readouterr().err.endswith("cluster: It is damaged. Fetch it again.\n")


def test_a_refusal_by_nodes_that_are_long_there_ends_the_wait_at_once(node, status, capsys):
    node.answers = [refused(status, "model_broken")]
    assert main(["wait", "--api", node.url]) == 1
    assert node.paths == ["/cluster/status"]
    assert capsys.readouterr().err.endswith("cluster: It is damaged. Fetch it again.\n")


def test_others_may_be_about_to_join_a_node_that_has_just_started(status):
    no, now = refused(status, "model_broken"), time.time()
    assert until_settled(no) == 0
    no["nodes"][1]["started_at"] = now - 4
    assert 5 < until_settled(no) <= 6
    no["nodes"][1]["started_at"] = now + 99
    assert until_settled(no) == SETTLED_S, "its clock is ahead"
    no["nodes"][1]["state"] = "failed"
    assert until_settled(no) == 0
    del no["nodes"][0]["started_at"]
    assert until_settled(no) > 9, "an older node does not say"
    assert until_settled(refused(status, "no_capacity")) == SETTLED_S, "a node may bring memory at any time"


def test_no_request_outlives_the_deadline(status):
    api = FakeApi(StatusFailed("mute"))
    run(api, timeout=6.0)
    assert api.timeouts[0] == 5.0
    assert api.timeouts[-1] <= 0.25


def test_no_time_still_looks_once(ready):
    assert run(FakeApi(ready), timeout=0)[0] == ""


@pytest.mark.parametrize(
    ("target", "lack"),
    [
        (Target(), ""),
        (Target(nodes=3), ""),
        (Target(nodes=4), "3 of 4 nodes are here"),
        (Target(model="mlx-community/Qwen3-32B-4bit"), ""),
        (Target(model="other"), "other is not wanted by this cluster (mlx-community/Qwen3-32B-4bit is)"),
    ],
)
def test_missing_of_a_ready_cluster(ready, target, lack):
    assert target.missing(ready) == lack


def test_a_node_that_is_refused_or_suspect_is_not_here(ready):
    ready["nodes"][0]["state"] = "suspect"
    assert Target(nodes=3).missing(ready) == "2 of 3 nodes are here"


def test_idle_is_ready_once_there_is_a_head(ready):
    ready |= {"state": "idle", "models": []}
    assert Target().missing(ready) == ""
    assert Target(model="m").missing(ready) == "m is not wanted by this cluster (no model is)"
    assert Target().missing(ready | {"head": ""}) == "no head is elected yet"


def test_another_model_does_not_matter(ready):
    ready["models"].append(ready["models"][0] | {"id": "big", "state": "refused"})
    ready["state"] = "degraded"
    ready["warnings"] = [{"code": "no-capacity", "severity": "error", "text": "big needs 90 GB.", "hint": "Add a Mac."}]
    assert Target(model="mlx-community/Qwen3-32B-4bit").missing(ready) == ""
    assert Target().missing(ready) == "big is refused; big needs 90 GB. Add a Mac"


def test_the_reasons_are_those_of_the_model_that_is_named(status):
    broken = "mini-1 could not load layers 0-7 of org/broken: It is damaged."
    status["models"].append(status["models"][0] | {"id": "org/broken", "state": "failed"})
    status["warnings"] += [
        {"code": "load-failed", "severity": "error", "text": broken, "hint": ""},
        {"code": "node-failed", "severity": "error", "text": "mini-9 is gone.", "hint": ""},
    ]
    lacks = {name: Target(model=name).missing(status) for name in ("org/broken", status["models"][0]["id"])}
    assert lacks["org/broken"] == f"org/broken is failed; {broken.strip('.')}; mini-9 is gone"
    qwen = status["models"][0]["id"]
    assert lacks[qwen] == f"{qwen} is loading; mini-9 is gone"
    status["warnings"] = [each for each in status["warnings"] if each["severity"] != "error"]
    assert Target(model=qwen).missing(status).startswith("mini-3 has fetched 58 %")
    assert Target(model="org/broken").missing(status) == "org/broken is failed"


def test_degraded_by_a_lost_replica_is_not_ready(ready):
    assert Target().missing(ready | {"state": "degraded"}) == "the cluster is degraded"


def test_a_log_is_told_of_progress_now_and_then():
    now = [100.0]
    pace = LogPace(lambda: now[0])
    fetching = "waiting: a has fetched {} % of layers 0-7 of m: {}, 2.5 MB/s, {} left".format
    assert pace.takes(fetching(1, "0.1 of 3.9 GB", "99 s"))
    assert not pace.takes(fetching(1, "0.1 of 3.9 GB", "99 s"))
    assert not pace.takes(fetching(2, "900 of 930 MB", "2 min"))
    now[0] += REPEAT_S
    assert pace.takes(fetching(3, "0.2 of 3.9 GB", "88 s"))
    assert pace.takes("waiting: a has loaded 3 % of layers 0-7 of m")


def test_a_key_that_is_missing_is_told_at_once():
    api = FakeApi(KeyRefused("It asks for an API key."))
    with pytest.raises(KeyRefused):
        run(api)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_other_machines_say_does_not_control_the_terminal(node, status, is_terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    for warning in status["warnings"]:
        warning["text"] += "\x1b]0;owned\x07"
    node.answers = [status]
    assert main(["wait", "--timeout", "0", "--api", node.url]) == 4
    said = capsys.readouterr().err
    assert said.count("owned") == 2, "as progress, and as what is missing"
    assert not set(said.replace(CLEAR_LINE, "")) & {"\x1b", "\x07"}


class Names:
    """A node that knows one short name."""

    def ask(self, method, path, timeout):
        if path != "/v1/models/llama3.2%3A1b":
            raise RequestRefused("There is no such model.")
        return {"id": "mlx-community/Llama-3.2-1B-Instruct-4bit"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mlx-community/Qwen3-32B-4bit", "mlx-community/Qwen3-32B-4bit"),
        ("qwen3-32b-4bit", "mlx-community/Qwen3-32B-4bit"),
        ("qwen3", "mlx-community/Qwen3-32B-4bit"),
        ("pippin", "pippin"),
        ("pippin-d", "pippin-demo"),
        ("p", "p"),
        ("llama3.2:1b", "mlx-community/Llama-3.2-1B-Instruct-4bit"),
        ("org/other", "org/other"),
    ],
)
def test_names_of_models(name, meant):
    status = {"models": [{"id": each} for each in ("mlx-community/Qwen3-32B-4bit", "pippin-demo", "pippin")]}
    assert model_id(Names(), name, status) == meant


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pippin-dmo", "There is no model 'pippin-dmo' here. Did you mean pippin-demo?"),
        ("qwen3-8c", "There is no model 'qwen3-8c' here. Did you mean qwen3-8b?"),
        ("nothing", "There is no model 'nothing' here. There are org/other, pippin-demo."),
        *((name, "") for name in ("Qwen3:8B", "qwen3-8b", "Qwen3-8B", "org/nothing", "pippin-demo")),
    ],
)
def test_a_name_of_no_model_ends_the_wait_with_one_that_is_like_it(node, ready, name, why, capsys, monkeypatch):
    monkeypatch.setattr("node.cli.wait.SETTLED_S", 0.0)
    models = {
        "models": [{"id": each, "short_names": []} for each in ("org/other", "pippin-demo")],
        "short_names": {"qwen3-8b": "mlx-community/Qwen3-8B-4bit"},
    }
    no = (404, json.dumps({"error": {"code": "model_not_found", "message": "No."}}).encode())
    hub = {"/cluster/hub?model=org%2Fnothing": {"models": []}}
    node.by_path = {"/cluster/status": ready, "/cluster/models": models, **hub}
    node.answers = [no]
    assert main(["wait", "--model", name, "--timeout", "0.5", "--api", node.url]) == (1 if why else 4)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        ((404, "model_not_found"), 1, "There is no model 'org/typo' on the hub."),
        ((503, "hub_unavailable"), 4, "not ready"),
        ((400, "bad_request"), 4, "not ready"),  # a node of an older version
        (None, 4, "not ready"),
    ],
)
def test_an_id_that_the_hub_does_not_know_ends_the_wait(node, ready, answer, code, told, capsys, monkeypatch):
    monkeypatch.setattr("node.cli.wait.SETTLED_S", 0.0)
    error = {"error": {"code": answer and answer[1], "message": "There is no model 'org/typo' on the hub."}}
    asked = "/cluster/hub?model=org%2Ftypo"
    found = {"models": [{"id": "org/typo", "bytes": 1, "downloads": 1}]}
    models = {"models": [], "short_names": {}}
    told_by_hub = (answer[0], json.dumps(error).encode()) if answer else found
    node.by_path = {"/cluster/status": ready, "/cluster/models": models, asked: told_by_hub}
    node.answers = [(404, json.dumps({"error": {"code": "model_not_found", "message": "No."}}).encode())]
    assert main(["wait", "--model", "org/typo", "--timeout", "0.6", "--api", node.url]) == code
    assert told in capsys.readouterr().err
    assert node.paths.count(asked) == 1, "the hub is asked once, however often the status is"
