import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core.units import format_bytes, format_download, format_share, parse_bytes

GB = 2**30


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("65536", 65536),
        ("512B", 512),
        ("64MB", 64 * 2**20),
        ("4GB", 4 * 2**30),
        (" 4 gb ", 4 * 2**30),
        ("4G", 4 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("64MiB", 2**26),
        ("0.1GB", 2**30 // 10),
        ("123456789012345678", 123456789012345678),
    ],
)
def test_parses(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "GB", "4XB", "-4GB", "1.5", "4 GB RAM", "1,5GB", "nan", "1e9", "٤GB", "4.GB", "9" * 500]
)
def test_refuses_with_an_example(text):
    with pytest.raises(ValueError, match="Write it like 64MB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (2**20 - 1024, "1023.0 KB"),
        (2**20 - 1, "1.0 MB"),
        (98 * 2**30 // 10, "9.8 GB"),
        (1000 * 2**50, "1000.0 PB"),
    ],
)
def test_formats(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (98 * 2**30 // 10, 16 * 2**30, "9.8 of 16.0 GB"),
        (0, 16 * 2**30, "0.0 of 16.0 GB"),
        (20_000_000, 4 * 2**30, "0.0 of 4.0 GB"),
        (0, 0, "0 of 0 B"),
    ],
)
def test_formats_a_share_in_one_unit(part, whole, text):
    assert format_share(part, whole) == text


@given(st.integers(0, 10**17))
def test_plain_numbers_stay_as_they_are(count):
    assert parse_bytes(str(count)) == count
    assert parse_bytes(f"{count}B") == count


@given(st.integers(0, 10**15))
def test_what_is_printed_can_be_read_back_but_for_rounding(count):
    text = format_bytes(count)
    assert len(text) <= len("1023.9 GB")
    assert parse_bytes(text) == pytest.approx(count, rel=0.051, abs=1)


@given(st.text(max_size=12))
def test_any_text_is_bytes_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert parse_bytes(text) >= 0


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.0, "1.0 of 4.0 GB"),
        (GB / 10, "1.0 of 4.0 GB, 102.4 MB/s, 30 s left"),
        (GB / 100, "1.0 of 4.0 GB, 10.2 MB/s, 5 min left"),
        (GB / 4000, "1.0 of 4.0 GB, 262.1 KB/s, 3.3 h left"),
    ],
)
def test_how_far_a_download_is(rate, text):
    assert format_download(GB, 4 * GB, rate) == text
