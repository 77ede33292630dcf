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
