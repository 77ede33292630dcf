"""What the page does to real nodes, as its user clicks: pull from a hub, load, unload, delete, drain; and a node that dies."""

import re
from pathlib import Path

import pytest

from tests.browser import Tab
from tests.conftest import MODEL, Cluster, Node
from tests.nodes.hub import ID, demo_hub, of_hub, weights

pytestmark = pytest.mark.slow

CARD = f".held [data-key='{ID}']"


def state_of(selector: str, state: str) -> str:
    return f"document.querySelector({selector!r})?.innerText === {state!r}"


async def test_a_model_is_found_fetched_loaded_unloaded_and_deleted(cluster: Cluster, tab: Tab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo_hub() as hub:
        name, content = max(hub.repos[ID].items(), key=lambda file: len(file[1]) * file[0].endswith(".safetensors"))
        hub.stalls[name] = len(content) // 2
        one = cluster.launch(environment=of_hub(hub, home)).started()
        await tab.open(one.url)
        await tab.click("[data-view=models]")
        await tab.write("#find-model", "some")
        await tab.until(f"document.querySelector('.found .name')?.innerText === {ID!r}", "the hub finds it")
        await tab.click(".found .pull")
        await tab.until("document.querySelector('.found progress').value > 0.1", "a part has come")
        assert re.search(r"Downloading: [\d.]+ MB of [\d.]+ MB", await tab.text(".found .model-card"))
        await tab.click(".found .pull")
        await tab.until("document.querySelector('.found .pull').innerText === 'Download'", "it is stopped")
        hub.stalled.set()
        await tab.click(".found .pull")
        held = f"[...document.querySelectorAll('.held .name')].some((each) => each.innerText === {ID!r})"
        await tab.until(f"{held} && !document.querySelector('.found .model-card')", "it is on the disk")
        assert weights(home)
        assert one.status()["models"] == []
        await tab.click(f"{CARD} summary")
        await tab.write(f"{CARD} [name=context]", "600")
        await tab.click(f"{CARD} .how button")
        await tab.until(state_of(f"{CARD} .state", "ready"), "it is loaded")
        (loaded,) = one.status()["models"]
        assert (loaded["id"], loaded["context"]) == (ID, 600)
        await tab.click(f"{CARD} .remove")
        await tab.click("#delete-model")
        await tab.until("document.querySelector('#delete-error').innerText.includes('in memory')", "it is in use")
        await tab.press("Escape")
        await tab.click(f"{CARD} .unload")
        await tab.until(state_of(f"{CARD} .state", "unloaded"), "it is unloaded")
        assert one.status()["models"] == []
        await tab.click(f"{CARD} .remove")
        await tab.click("#delete-model")
        await tab.until(f"!({held})", "it is deleted")
        assert not weights(home)


async def test_a_node_is_drained_and_a_dead_one_is_shown(cluster: Cluster, tab: Tab) -> None:
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    ring = cluster.ring(cluster.ready(*nodes, stages=2))
    here, other = ring
    await tab.open(here.url)
    await tab.until("document.querySelectorAll('.hop').length === 2", "both hops are drawn")
    await tab.click(f"{_card(other)} .drain")
    await tab.until(state_of(f"{_card(other)} .state", "drained"), "it holds nothing")
    assert here.state_of(other) == "drained"
    await tab.click(f"{_card(other)} .undrain")
    await tab.until(
        f"!['drained', 'draining'].includes(document.querySelector({_card(other) + ' .state'!r}).innerText)"
    )
    other.kill()
    await tab.until(f"document.querySelector('.station.gone .name')?.textContent === {other.name!r}", "it is grey")


def _card(node: Node) -> str:
    return f".node:has([data-name='{node.name}'])"
