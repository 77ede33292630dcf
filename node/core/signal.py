"""Wakes tasks that wait for a change."""

import asyncio


class Signal:
    """`notify` wakes all tasks that wait at that moment. It carries no value: they read the changed state again."""

    def __init__(self) -> None:
        self.count = 0
        """Notifications so far."""
        self._event = asyncio.Event()

    def notify(self) -> None:
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a notification. Returns False if there is none within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
