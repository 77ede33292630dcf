import io
import json

from node.cli.__main__ import main
from tests.cli.test_answers import sse

GB = 2**30


def test_pull_tells_progress_and_the_end(node, capsys):
    first, last = ({"model": "org/m", "done": done * GB, "bytes": 4 * GB} for done in (1, 4))
    node.answers = [sse(first, ": keep-alive", last)]
    assert main(["pull", "m", "--api", node.url]) == 0
    assert capsys.readouterr() == ("org/m   4.0 GB\n", "org/m   1.0 of 4.0 GB\n")
    assert node.paths == ["/cluster/models/m/pull"]


def test_a_download_that_fails(node, capsys):
    error = {"error": {"message": "The disk is full."}}
    node.answers = [sse({"model": "org/m", "done": 1, "bytes": 4}, error, done=False)]
    assert main(["pull", "org/m", "--api", node.url]) == 1
    assert capsys.readouterr().err.endswith("cluster: The disk is full.\n")
    assert node.paths == ["/cluster/models/org%2Fm/pull"]


def test_rm(node, capsys):
    node.answers = [{"model": "org/m", "bytes": 3 * GB}]
    assert main(["rm", "org/m", "--api", node.url]) == 0
    assert capsys.readouterr().out == "org/m is deleted: 3.0 GB are free.\n"
    node.answers = [(404, json.dumps({"error": {"message": "No files of it."}}).encode())]
    assert main(["rm", "org/m", "--api", node.url]) == 1
    assert capsys.readouterr().err == "cluster: No files of it.\n"


NOT_FETCHED = (409, json.dumps({"error": {"message": "Not ours.", "code": "model_not_fetched"}}).encode())


def test_rm_asks_on_a_terminal_before_it_deletes_what_pippin_did_not_fetch(node, capsys, monkeypatch):
    for typed, asked, told in (
        ("y\n", [False, True], "org/m is deleted: 3.0 GB are free.\n"),
        ("\n", [False], "Nothing is deleted.\n"),
        ("", [False], "Nothing is deleted.\n"),  # Ctrl-D
    ):
        node.bodies.clear()
        node.answers = [NOT_FETCHED, {"model": "org/m", "bytes": 3 * GB}]
        monkeypatch.setattr("sys.stdin", terminal := io.StringIO(typed))
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        assert main(["rm", "org/m", "--api", node.url]) == 0
        assert capsys.readouterr() == (told, "cluster: Not ours.\nDelete it all the same? [y/N] ")
        assert [body["not_fetched"] for body in node.bodies] == asked


def test_rm_without_a_terminal_refuses_what_pippin_did_not_fetch(node, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    node.answers = [NOT_FETCHED]
    assert main(["rm", "org/m", "--api", node.url]) == 1
    assert capsys.readouterr() == ("", "cluster: Not ours.\n")
    node.answers = [{"model": "org/m", "bytes": 3 * GB}]
    assert main(["rm", "--yes", "org/m", "--api", node.url]) == 0
    assert [body["not_fetched"] for body in node.bodies] == [False, True]
