"""docs/faults.md lists the known gaps. Each is a test that is expected to fail, and fails as soon as it does not."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAPS = 4
"""Lower it with each gap that is closed, and never raise it: who finds one mends it."""
LISTED = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)
EXPECTED = re.compile(r"^@pytest\.mark\.xfail\(.*\)$", re.MULTILINE)
PROVEN = re.compile(r'@pytest\.mark\.xfail\(strict=True, reason="gap: ([a-z-]+)"\)')


def test_the_gaps_are_those_that_tests_prove_and_are_no_more_than_before() -> None:
    _, found, section = (ROOT / "docs" / "faults.md").read_text().partition("\n## Known gaps\n")
    assert found
    listed = LISTED.findall(section.partition("\n## ")[0])
    assert len(listed) == GAPS
    expected = [mark for path in (ROOT / "tests").rglob("*.py") for mark in EXPECTED.findall(path.read_text())]
    proven = [match[1] for mark in expected if (match := PROVEN.fullmatch(mark))]
    assert len(proven) == len(expected), "no other test is expected to fail"
    assert sorted(listed) == sorted(proven)
