"""When a node that was told to stop ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.signal import Signal
from node.daemon.daemon import Daemon


async def test_a_node_leaves_soon_after_its_last_request_though_nobody_tells_of_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = iter([True, True, False])
    monkeypatch.setattr("node.daemon.daemon.is_needed", lambda _: next(needed))
    daemon: Any = SimpleNamespace(_agent=SimpleNamespace(view=lambda: None, changed=Signal()))
    async with asyncio.timeout(10):
        await Daemon._hand_over(daemon)
    assert not list(needed)
