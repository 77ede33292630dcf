"""Text of others must not look like a line of the log, nor move the reader's cursor."""

import io
import logging
import re
from collections.abc import Iterator

import pytest

from node.core.logs import LineFormatter

LINE = r"\d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) +"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter())
    log = logging.getLogger("tests.logs")
    log.propagate = False
    log.addHandler(handler)
    yield out
    log.removeHandler(handler)


def test_a_record_is_one_line_whatever_it_tells_of(written: io.StringIO) -> None:
    logging.getLogger("tests.logs").warning("a peer says %s", "x\n12:00:00.000 ERROR   all is lost\x1b[2J\u2028\x85\r")
    (line,) = written.getvalue().splitlines()
    assert re.fullmatch(LINE + re.escape(r"a peer says x\n12:00:00.000 ERROR   all is lost\x1b[2J\u2028\x85\r"), line)


def test_what_can_be_read_stays_as_it_is(written: io.StringIO) -> None:
    logging.getLogger("tests.logs").warning("Zoë's Mac: 東京 🍏 %s", r"C:\new")
    assert written.getvalue().endswith("Zoë's Mac: 東京 🍏 C:\\new\n")


def test_a_traceback_is_indented_and_holds_no_line_of_its_own_making(written: io.StringIO) -> None:
    try:
        raise ValueError("bad\n12:00:00.000 ERROR   all is lost\x1b[2J")
    except ValueError:
        logging.getLogger("tests.logs").exception("it failed")
    first, *others = written.getvalue().splitlines()
    assert re.fullmatch(LINE + "it failed", first)
    assert others[-1] == r"    12:00:00.000 ERROR   all is lost\x1b[2J"
    assert all(line.startswith("    ") for line in others)
