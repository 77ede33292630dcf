import json

from node.cli.__main__ import main


def test_the_log_of_the_node_that_is_asked(node, capsys):
    node.answers = [(200, b"one\n\n\x1b[2Jtwo\n")]
    assert main(["logs", "-n", "5", "--api", node.url]) == 0
    assert capsys.readouterr().out == "one\n[2Jtwo\n"
    assert node.paths == ["/cluster/logs?lines=5"]


def test_only_the_node_that_was_named_hears_of_the_key(node, capsys, monkeypatch):
    """It asks the other one, which may have told any address."""
    monkeypatch.setenv("PIPPIN_API_KEY", "sk-mine")
    node.answers = [(200, b"its line\n")]
    assert main(["logs", "-f", "mini 2", "--api", node.url]) == 0
    assert capsys.readouterr().out == "its line\n"
    assert node.paths == ["/cluster/logs?lines=200&node=mini+2&follow=true"]
    assert node.keys == ["Bearer sk-mine"]


def test_no_such_node(node, capsys):
    node.answers = [(404, json.dumps({"error": {"message": "No node is named 'mini-9'."}}).encode())]
    assert main(["logs", "mini-9", "--api", node.url]) == 1
    assert "No node is named 'mini-9'." in capsys.readouterr().err
