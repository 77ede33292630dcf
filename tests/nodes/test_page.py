"""The page in a browser, with real nodes: one of them is killed in the middle of an answer."""

import asyncio

import pytest

from tests.browser import Tab
from tests.conftest import MODEL, Cluster

pytestmark = pytest.mark.slow

QUESTION = "Count from 1 to 100"
"""The page promises two seconds; these machines may be busy."""


async def test_an_answer_goes_on_when_a_node_is_killed(tab: Tab, cluster: Cluster) -> None:
    nodes = await asyncio.to_thread(cluster.start, 3, "--model", MODEL, "--stages", "3")
    status = await asyncio.to_thread(cluster.ready, *nodes)
    gateway, *others = nodes
    undisturbed = await asyncio.to_thread(gateway.chat, QUESTION)
    await tab.open(gateway.url)
    await tab.until("document.querySelectorAll('.node:not(.gone)').length === 3")
    assert len(await tab.evaluate("[...document.querySelectorAll('.layers')].map((each) => each.innerText)")) == 3
    await tab.click(".settings summary")
    await tab.write("#temperature", "0")
    await tab.write("#prompt", QUESTION)
    await tab.press("Enter")
    await tab.until("document.querySelector('.assistant > .text')?.innerText.length > 20", "the answer has begun")
    killed = others[-1]
    assert killed.name in {node["name"] for node in status["nodes"]}
    killed.kill()
    gone = (
        f"[...document.querySelectorAll('.node.gone .name')].map((each) => each.innerText).join() === '{killed.name}'"
    )
    await tab.until(gone, "the node that was killed is grey")
    await tab.until("document.querySelector('.assistant > .actions:not([hidden])') !== null", "the answer is complete")
    assert (await tab.text(".assistant > .text")).split() == undisturbed.text.split()
    assert await tab.text(".assistant > .error") == ""
    assert "tokens/s" in await tab.text(".figures")
    assert tab.complaints == []
