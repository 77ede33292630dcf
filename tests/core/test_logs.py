"""Text of others must not look like a line of the log, nor move the reader's cursor."""

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import start as program
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


def test_a_log_file_has_dates_and_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LOG_BYTES", 100)
    handler = program._log_handler(tmp_path / "log")
    for number in range(9):
        handler.handle(logging.LogRecord("x", logging.INFO, "", 1, f"line {number} {'.' * 60}", (), None))
    handler.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", *(f"log.{number}" for number in range(1, 5))]
    assert re.match(r"\d{4}-\d\d-\d\d " + LINE + "line 8 ", (tmp_path / "log").read_text())


def test_a_log_file_that_cannot_be_written_ends_the_node(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no/log can't be written: No such file or directory"):
        program._log_handler(tmp_path / "no" / "log")
