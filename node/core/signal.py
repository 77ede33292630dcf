"""Waking whoever waits for something to change."""

import asyncio


class Signal:
    """`notify` wakes all who wait at that moment. Waiters look at the state again: a signal carries none."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """False when `timeout_s` went by without a notification."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
