"""What copies of KV cost the frames that share a wire with them: parts and frames, one after the other, on simulated wires."""

import asyncio
import itertools
import random

import pytest

from node.kv.copies import MOST_BYTES_PER_S, SHARE
from node.rpc.client import paced

GBIT = 1e9 / 8
WIRES = {
    "wi-fi, 300 Mbit/s": 0.3 * GBIT,
    "ethernet, 1 Gbit/s": GBIT,
    "ethernet, 10 Gbit/s": 10 * GBIT,
    "thunderbolt": 2e9,
}
LEAST = 0.97
"""Of the speed without copies."""


async def sent(bandwidth: float, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """When each part of 64 MB of copies is sent, and its bytes."""
    at = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal at
        at += seconds

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        rate = min(SHARE * bandwidth, MOST_BYTES_PER_S)
        return [(at, len(part)) async for part in paced(bytes(64 << 20), rate)]


def seconds_of(steps: int, compute_s: float, frame: int, bandwidth: float, parts: list[tuple[float, int]]) -> float:
    """Of so many steps, each of which computes and then sends a frame. The wire sends what came first."""
    rng = random.Random(f"{compute_s} {bandwidth}")
    at = free_at = 0.0
    coming = iter(parts)
    part = next(coming, None)
    for _ in range(steps):
        at += compute_s * rng.uniform(0.9, 1.1)  # steps and parts are not in time with each other
        while part and part[0] <= at:
            free_at = max(free_at, part[0]) + part[1] / bandwidth
            part = next(coming, None)
        at = free_at = max(at, free_at) + frame / bandwidth
    assert bool(part) == bool(parts), "copies are sent all the time"
    return at


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("compute_s", "frame"), [(0.010, 16 << 10), (0.030, 16 << 10), (0.5, 4 << 20)], ids=["10 ms", "30 ms", "a prompt"]
)
async def test_frames_hardly_wait_for_copies(
    wire: str, compute_s: float, frame: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bandwidth = WIRES[wire]
    parts = await sent(bandwidth, monkeypatch)
    steps = max(1, int(0.5 / compute_s))
    with_copies = seconds_of(steps, compute_s, frame, bandwidth, parts)
    without = seconds_of(steps, compute_s, frame, bandwidth, [])
    assert without / with_copies >= LEAST


@pytest.mark.parametrize("wire", WIRES)
async def test_copies_take_no_more_than_their_share(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = await sent(WIRES[wire], monkeypatch)
    for (begin, size), (end, _) in itertools.pairwise(parts):
        assert size / (end - begin) <= SHARE * WIRES[wire] * 1.001
