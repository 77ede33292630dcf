import errno
import re
import socket

import pytest

from node.cli.client import Api, NoNode, StatusFailed, parse_api


@pytest.mark.parametrize(
    ("text", "api"),
    [
        ("http://127.0.0.1:52415", Api("http", "127.0.0.1", 52415)),
        ("http://127.0.0.1:8000/", Api("http", "127.0.0.1", 8000)),
        ("http://home.local:52415/v1", Api("http", "home.local", 52415)),
        ("http://home.local/v1/", Api("http", "home.local", 52415)),
        ("home.local", Api("http", "home.local", 52415)),
        ("mini-1:9/cluster/status", Api("http", "mini-1", 9)),
        ("https://x:443", Api("https", "x", 443)),
        ("http://[fd00::1]:81/v1", Api("http", "fd00::1", 81)),
    ],
)
def test_addresses(text, api):
    assert parse_api(text) == api


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://x", "x:0", "x:99999", "http://x/other", "a b", "http://x?y", "x:port"]
)
def test_no_addresses(text):
    with pytest.raises(ValueError, match="write it like http://127\\.0\\.0\\.1:52415"):
        parse_api(text)


def test_sends_its_key_and_shows_it_to_nobody(node, ready):
    node.answers = [ready, ready, (401, b"{}")]
    keyed = parse_api(node.url)._replace(key="sk-one")
    parse_api(node.url).status()
    keyed.status()
    assert node.keys == [None, "Bearer sk-one"]
    with pytest.raises(StatusFailed, match="does not know the API key") as caught:
        keyed.status()
    assert "sk-one" not in f"{caught.value}{keyed}"


def test_prints_as_it_was():
    assert str(Api("http", "fd00::1", 81)) == "http://[fd00::1]:81"


def test_asks_the_one_path(node, ready):
    node.answers = [ready]
    assert parse_api(node.url + "/v1").status() == ready
    assert node.paths == ["/cluster/status"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((404, b"<html>not found</html>"), "is no Pippin node: it answered 404"),
        ((200, b"<html>"), "is no Pippin node: it answered 200"),
        ((200, b"[1]"), "is no Pippin node"),
        ((200, b"\xff"), "is no Pippin node"),
        ((200, b'{"ok": true}'), "is no Pippin node"),
        ((401, b"{}"), "asks for an API key"),
        ((200, b'{"schema": 2}'), "answers with schema 2; this `cluster` knows 1"),
    ],
)
def test_other_answers(node, answer, text):
    node.answers = [answer]
    with pytest.raises(StatusFailed, match=text) as caught:
        parse_api(node.url).status()
    assert not isinstance(caught.value, NoNode)


def test_nobody_there():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(
            NoNode, match=rf"No node answers at {re.escape(f'http://127.0.0.1:{port}')} .*Start one with `node`"
        ):
            Api("http", "127.0.0.1", port).status()


def test_a_node_that_never_answers_is_told_apart_from_none():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        api = Api("http", "127.0.0.1", mute.getsockname()[1])
        with pytest.raises(StatusFailed, match=r"did not answer within 0\.05 s") as caught:
            api.status(timeout=0.05)
        assert not isinstance(caught.value, NoNode)


def test_a_proxy_in_the_environment_is_not_asked(node, ready, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    node.answers = [ready]
    assert parse_api(node.url).status() == ready


@pytest.mark.parametrize(("system", "told"), [("Darwin", True), ("Linux", False)])
def test_a_mac_without_permission_is_told_of_it(system, told, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("http.client.HTTPConnection.connect", refuse)
    with pytest.raises(NoNode, match="No route to host") as caught:
        Api("http", "192.168.1.5", 52415).status()
    assert ("Privacy & Security > Local Network" in str(caught.value)) == told
