import json

import pytest

from node.cli.__main__ import main


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.cli.doctor.examine_terminal", lambda _: iter(()))


def test_findings(node, status, capsys):
    node.answers = [status]
    assert main(["doctor", "--api", node.url]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert [line[:20] for line in lines[:-1:2]] == [
        "! version-mismatch  ",
        "! slow-link  mini-2 ",
        "- loading  mini-3 ha",
    ]
    codes = ("version-mismatch", "slow-link", "loading")
    assert lines[1:-1:2] == [f"  docs/troubleshooting.md#{code}" for code in codes]
    assert lines[-1] == "2 warnings, 1 info"


def test_a_code_of_a_newer_node_has_no_section(node, ready, capsys):
    node.answers = [ready | {"warnings": [{"code": "new-code", "severity": "info", "text": "New.", "hint": ""}]}]
    assert main(["doctor", "--api", node.url]) == 0
    assert capsys.readouterr().out == "- new-code  New.\n1 info\n"


def test_findings_of_one_code_are_one(node, ready, capsys):
    sleep = {"code": "may-sleep", "severity": "info", "hint": "Run `sudo pmset -a sleep 0` there."}
    found = [sleep | {"node": name, "text": f"{name} goes to sleep."} for name in ("a", "b")]
    node.answers = [ready | {"warnings": found}]
    assert main(["doctor", "--api", node.url]) == 0
    assert capsys.readouterr().out == (
        "- may-sleep  2 nodes: a goes to sleep. b goes to sleep. Run `sudo pmset -a sleep 0` there.\n"
        "  docs/troubleshooting.md#may-sleep\n1 info\n"
    )


def test_findings_about_one_node(node, status, capsys):
    node.answers = [status]
    assert main(["doctor", "--api", node.url, "--node", "mini-3", "--json"]) == 0
    (issue,) = json.loads(capsys.readouterr().out)["warnings"]
    assert issue["code"] == "loading"
    assert main(["doctor", "--api", node.url, "--node", "mini-1"]) == 0
    assert capsys.readouterr().out == "Nothing is wrong.\n"
    assert main(["doctor", "--api", node.url, "--node", "mini-9"]) == 1
    assert "No nodes are called mini-9. There are mini-1" in capsys.readouterr().err


def test_nothing_is_wrong(node, ready, capsys):
    node.answers = [ready]
    assert main(["doctor", "--api", node.url]) == 0
    assert capsys.readouterr().out == "Nothing is wrong.\n"


def test_without_a_node_the_terminal_is_examined(capsys, monkeypatch):
    from node.host.examination import which_node

    monkeypatch.setattr("node.cli.doctor.examine_terminal", lambda _: iter([which_node("/usr/bin/node", "")]))
    assert main(["doctor", "--api", "127.0.0.1:1"]) == 3
    said = capsys.readouterr()
    assert "- which-node  `node` is /usr/bin/node in this shell" in said.out
    assert "No node answers" in said.err
