import logging

from node.core.logs import MAX_LINE_CHARS, MAX_PART_LINES, RECENT, RecentLines


def recent(*lines):
    kept = RecentLines()
    for line in lines:
        kept.write(f"{line}\n")
    return kept


def test_the_last_lines_are_kept_by_number():
    kept = recent("one", "two", "three")
    assert kept.since(1) == (["two", "three"], 3)
    assert kept.since(3) == ([], 3)
    assert kept.since(-5) == (["one", "two", "three"], 3)


async def test_the_last_lines_are_read():
    kept = recent("one", "two", "three")
    assert [part async for part in kept.read(1, follow=False)] == [["three"]]
    assert [part async for part in kept.read(8, follow=False)] == [["one", "two", "three"]]


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


async def test_it_is_read_in_parts():
    numbers = [str(number) for number in range(MAX_PART_LINES + 20)]
    kept = recent(*numbers)
    assert [part async for part in kept.read(MAX_PART_LINES + 10, follow=False)] == [numbers[10:110], numbers[110:]]
    assert [part async for part in kept.read(0, follow=False)] == []


async def test_it_is_followed(monkeypatch):
    monkeypatch.setattr("node.core.logs.LOOK_S", 0.001)
    kept = recent()
    parts = kept.read(5, follow=True)
    assert [await anext(parts), await anext(parts)] == [[], []]
    kept.write("one\ntwo\n")
    assert await anext(parts) == ["one", "two"]
    assert await anext(parts) == [], "it is quiet, not over"
    await parts.aclose()
