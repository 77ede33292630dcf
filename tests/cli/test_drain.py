import json

import pytest

from node.cli.__main__ import main
from node.cli.wait import undrained


def named(status, state, **rest):
    status["nodes"][0] |= {"state": state, **rest}
    return json.loads(json.dumps(status))


def test_it_waits_until_the_node_holds_nothing(node, ready, capsys):
    node.answers = [{"node": "a1"}, named(ready, "draining"), named(ready, "drained", layers=[])]
    assert main(["drain", "mini-1", "--api", node.url]) == 0
    out, err = capsys.readouterr()
    assert out == "mini-1 is drained\n"
    assert err == "waiting: mini-1 is draining and holds layers 0-21 of mlx-community/Qwen3-32B-4bit\n"
    assert node.paths == ["/cluster/nodes/mini-1/drain", "/cluster/status", "/cluster/status"]


def test_not_in_time(node, ready, capsys):
    node.answers = [{"node": "a1"}, named(ready, "draining")]
    assert main(["drain", "a1", "--timeout", "0", "--api", node.url]) == 4
    assert "cluster: not drained after 0 s: mini-1 is draining" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["drain", "undrain"])
def test_a_refusal_is_told_as_it_is(node, capsys, command):
    node.answers = [(503, json.dumps({"error": {"message": "m needs 12.1 GB."}}).encode())]
    assert main([command, "mini-1", "--api", node.url]) == 1
    assert capsys.readouterr().err == "cluster: m needs 12.1 GB.\n"


def test_another_server_is_no_node(node, capsys):
    node.answers = [(404, b"nothing here")]
    assert main(["drain", "mini-1", "--api", node.url]) == 1
    assert "is no Pippin node" in capsys.readouterr().err


def test_undrain(node, capsys):
    node.answers = [{"node": "a1"}]
    assert main(["undrain", "mini 1/x", "--api", node.url]) == 0
    assert capsys.readouterr().out == "mini 1/x is in use\n"
    assert node.paths == ["/cluster/nodes/mini%201%2Fx/undrain"]


def test_a_node_that_is_gone_is_no_longer_held_up(ready):
    assert undrained(named(ready, "left"), "a1").startswith("mini-1 is left and holds layers ")
    assert undrained(named(ready, "left", layers=[]), "a1") == ""
    assert undrained(ready, "unknown") == ""
