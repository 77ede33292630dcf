import pytest

from node.cli.__main__ import main


def test_the_log_of_the_node_that_is_asked(node, capsys):
    node.answers = [(200, b"one\n\n\x1b[2Jtwo\n")]
    assert main(["logs", "-n", "5", "--api", node.url]) == 0
    assert capsys.readouterr().out == "one\n[2Jtwo\n"
    assert node.paths == ["/cluster/logs?lines=5"]


@pytest.mark.parametrize("name", ["mini-2", "b2", "b"])
def test_the_log_of_another_node(name, node, status, capsys):
    status["nodes"][1]["api"] = f"{node.url}/v1"
    node.answers = [status, (200, b"its line\n")]
    assert main(["logs", "-f", name, "--api", node.url]) == 0
    assert capsys.readouterr().out == "its line\n"
    assert node.paths == ["/cluster/status", "/cluster/logs?lines=200&follow=true"]


@pytest.mark.parametrize("address", ["", "http://[fe80::1%25en0]:52415/v1"])
def test_a_node_without_an_address_to_ask(address, node, status, capsys):
    status["nodes"][1]["api"] = address
    node.answers = [status]
    assert main(["logs", "mini-2", "--api", node.url]) == 1
    assert capsys.readouterr().err.startswith("cluster: mini-2 has no address for its API")


def test_no_such_node(node, status, capsys):
    node.answers = [status]
    assert main(["logs", "mini-9", "--api", node.url]) == 1
    assert "No node is named 'mini-9'. There are mini-1 (a1)," in capsys.readouterr().err
