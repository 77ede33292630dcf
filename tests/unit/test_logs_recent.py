import logging

from node.core.logs import MAX_LINE_CHARS, RECENT, RecentLines


def recent(*lines):
    kept = RecentLines()
    for line in lines:
        kept.write(f"{line}\n")
    return kept


def test_the_last_lines_are_kept_by_number():
    kept = recent("one", "two", "three")
    assert kept.since(1) == (["two", "three"], 3)
    assert kept.since(3) == ([], 3)
    assert kept.last(1) == (["three"], 3)
    assert kept.last(8) == (["one", "two", "three"], 3)


def test_older_lines_are_dropped():
    numbers = [str(number) for number in range(RECENT + 10)]
    kept = recent(*numbers)
    assert kept.since(0) == (numbers[10:], RECENT + 10)
    assert kept.since(RECENT + 8) == (numbers[-2:], RECENT + 10)


def test_long_lines_are_cut():
    assert recent("x" * 100_000).since(0)[0] == ["x" * MAX_LINE_CHARS]


def test_a_record_that_cannot_be_formatted_harms_nobody_who_logs_it(capsys):
    """Of gRPC or of another library."""
    kept = RecentLines()
    handler = logging.StreamHandler(kept)
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("one",)}))
    handler.handle(logging.makeLogRecord({"msg": "one\n two"}))
    assert kept.since(0) == (["one", " two"], 2)
    assert "Logging error" in capsys.readouterr().err
