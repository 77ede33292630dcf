import asyncio
import contextlib

import pytest

from node.core.errors import Overloaded
from node.core.followers import Followers


class Reader:
    """Follows until it is told to stop."""

    def __init__(self, followers, client):
        self.begun, self.stop = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._follow(followers, client))

    async def _follow(self, followers, client):
        async with followers.place(client):
            self.begun.set()
            await self.stop.wait()


@pytest.fixture
async def follow():
    async with contextlib.AsyncExitStack() as stack:

        async def follow(followers, client):
            reader = Reader(followers, client)
            stack.callback(reader.task.cancel)
            await reader.begun.wait()
            await asyncio.sleep(0)  # the end of another one reaches its task
            return reader

        yield follow


async def ended(*readers):
    await asyncio.wait([reader.task for reader in readers], timeout=10)
    return [isinstance(reader.task.exception(), Overloaded) for reader in readers]


async def test_the_oldest_reading_of_the_same_client_ends(follow):
    followers = Followers(10, 2)
    other, *mine = [await follow(followers, client) for client in ("b", "a", "a", "a", "a")]
    assert await ended(*mine[:2]) == [True, True]
    assert not any(reader.task.done() for reader in (other, *mine[2:]))


async def test_if_all_places_are_taken_the_client_with_the_most_gives_one(follow):
    followers = Followers(4, 3)
    few, *many = [await follow(followers, client) for client in ("b", "a", "a", "a")]
    newest = await follow(followers, "c")
    assert await ended(many[0]) == [True]
    assert not any(reader.task.done() for reader in (few, *many[1:], newest))


async def test_a_place_is_free_again_when_its_reader_goes(follow):
    followers = Followers(10, 1)
    for how in ("stop", "cancel"):
        reader = await follow(followers, "a")
        reader.stop.set() if how == "stop" else reader.task.cancel()
        await asyncio.wait([reader.task])
    last = await follow(followers, "a")
    assert not last.task.done()


async def test_a_timeout_of_the_reader_itself_stays_one():
    with pytest.raises(TimeoutError, match="its own"):
        async with Followers(2, 1).place("a"):
            raise TimeoutError("its own")
