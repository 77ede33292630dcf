"""The limit of file descriptors, and a node without free ones."""

import errno
import logging
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from node.core.errors import BadRequest
from node.core.retried import Retried
from node.host.descriptors import MAX_DESCRIPTORS, DescriptorShortage, fixed_limit, raise_limit
from node.host.interfaces import can_bind, interface_towards

RAISE = """
import resource
from node.host.descriptors import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {most}))
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("most", [256, 300, 4096])
def test_the_limit_is_raised_to_the_maximum(most):
    done = subprocess.run([sys.executable, "-c", RAISE.format(most=most)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(most), str(most)]


def test_an_endless_maximum_is_not_asked_for(monkeypatch):
    asked = []

    def setrlimit(kind, limits):
        asked.append(limits)
        if limits[0] > 10_240:
            raise ValueError("as macOS may")

    endless = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, endless))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_limit()
    assert asked == [(MAX_DESCRIPTORS, endless), (10_240, endless)]


def test_no_import_lowers_the_limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with fixed_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.fixture
def none_left():
    """This process can't open any more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("none_left")
def test_questions_of_the_system_that_need_a_socket_are_answered_without_one():
    assert interface_towards("127.0.0.1", ()) is None
    assert not can_bind("127.0.0.1")


def test_connections_that_wait_are_told_of_now_and_then(caplog):
    times = iter([100.0, 100.0, 105.0, 111.0, 111.0])
    others = []
    loop = SimpleNamespace(time=lambda: next(times), default_exception_handler=others.append)
    handle = DescriptorShortage()
    for number in (errno.EMFILE, errno.ENFILE, errno.EMFILE):
        handle(loop, {"exception": OSError(number, "too many")})
    assert len(caplog.records) == 2
    odd = {"exception": OSError(errno.EBADF, "odd")}
    handle(loop, odd)
    assert others == [odd]


def test_what_is_tried_again_is_told_of_once_for_each_failure(caplog):
    tried = Retried("It failed")
    for error in (
        OSError("no disk"),
        OSError("no disk"),
        BadRequest("bad"),
        None,
        BadRequest("bad"),
        ValueError("odd"),
    ):
        with tried:
            if error:
                raise error
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no disk", "bad", "bad", "odd"]
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, False, True]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_ends_a_task_is_not_held_up():
    with pytest.raises(KeyboardInterrupt), Retried("It failed"):
        raise KeyboardInterrupt
