"""Attempts that fail are limited; those that succeed are not."""

import asyncio

from node.cluster.turns import Turns


async def test_so_many_at_once_and_then_none():
    turns = Turns(3, 1000.0)
    waiting = [asyncio.create_task(turns.take()) for _ in range(5)]
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [True, True, True, False, False]
    turns.give_back()
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [True, True, True, True, False]
    waiting[-1].cancel()


async def test_one_per_interval():
    turns = Turns(2, 0.05)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(6):
        await turns.take()
    assert loop.time() - begun > 0.19
