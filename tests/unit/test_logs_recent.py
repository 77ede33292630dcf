import logging

from node.core.logs import RECENT, RecentLines


def recent(*messages):
    kept = RecentLines()
    for message in messages:
        kept.handle(logging.makeLogRecord({"msg": message, "levelname": "INFO"}))
    return kept


def test_the_last_lines_are_kept_by_number():
    kept = recent("one", "two", "three")
    assert kept.count == 3
    assert [line.rpartition(" ")[2] for line in kept.since(1)] == ["two", "three"]
    assert kept.since(3) == []
    assert len(kept.since(-5)) == 3


def test_older_lines_are_dropped():
    kept = recent(*map(str, range(RECENT + 10)))
    assert len(kept.since(0)) == RECENT
    assert kept.since(0)[0].endswith(" 10")
    assert [line.rpartition(" ")[2] for line in kept.since(RECENT + 8)] == [str(RECENT + 8), str(RECENT + 9)]


def test_long_lines_are_cut():
    assert len(recent("x" * 100_000).since(0)[0]) < 10_000
