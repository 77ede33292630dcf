"""The page's view of models, with a scripted backend: what it shows, asks and sends."""

import json

import pytest

from node.core.errors import HubUnavailable, ModelBusy, ModelNotFetched, NoCapacity
from node.gateway.disk import Pulled
from node.model.hub_search import HubModel
from tests.api.paged import MODEL, TWO, happens, node_status

KEY = "sk-of-the-page"
HOSTILE = '<img src=x onerror="window.hacked=1">'


def held(model, **changed):
    about = {"id": model, "state": "unloaded", "bytes": 3 << 30, "nodes": ["id-0"], "fits": True, "reason": ""}
    return {**about, "short_names": [], "aliases": [], **changed}


def overview(*models, short_names=None, unusable=(), sizes=None):
    names = {"aliases": {}, "short_names": short_names or {}}
    return {"schema": 1, "models": models, "unusable": unusable, **names, "sizes": sizes or {}}


@pytest.fixture
async def models(page, backend):
    backend.shown = {**TWO, "self": "id-0"}
    why = "The weights need 90.0 GB; 2 nodes have 24.0 GB for models."
    backend.held = overview(
        held("org/big", bytes=90 << 30, nodes=["id-1"], fits=False, reason=why),
        held("org/small", short_names=["small"]),
        held(MODEL, state="ready", nodes=["id-0", "id-1"]),
        short_names={"small": "org/small", "qwen3-8b": "mlx-community/Qwen3-8B-4bit"},
        unusable=[{"id": "old.gguf", "reason": "It is GGUF."}],
    )
    await page.click("[data-view=models]")
    await page.until("document.querySelectorAll('.held .model-card').length === 3")
    return page


def card(number, rest=""):
    return f".held .model-card:nth-child({number}) {rest}"


async def shown(page, selector):
    """The buttons that a card has."""
    return await page.evaluate(f"""[...document.querySelectorAll({json.dumps(selector)} + " > .buttons button")]
        .filter((each) => each.checkVisibility()).map((each) => each.innerText).join()""")


async def test_what_nodes_hold(models):
    first, second, third = [await models.text(card(number)) for number in (1, 2, 3)]
    assert first.splitlines()[:2] == [MODEL, "ready"], "those in memory come first"
    assert "8 layers on 2 nodes · context 2k · 1 running, 2 queued · 21.4 tokens/s" in first
    assert "3.0 GB · fits · on disk of mini-1, mini-2" in first
    assert "The weights need 90.0 GB; 2 nodes have 24.0 GB for models." in second
    assert "fits" not in second.replace("need", "")
    assert "3.0 GB · small · fits · on disk of mini-1" in third
    assert await shown(models, card(1)) == "Chat,Unload,Delete"
    assert await shown(models, card(2)) == "Chat,Load,Download"
    assert await shown(models, card(3)) == "Chat,Load,Delete"
    assert "old.gguf: It is GGUF." in await models.text("#models")


async def test_a_model_that_was_refused_can_be_given_up(models, backend):
    refused = {**TWO["models"][0], "id": "org/big", "state": "refused", "rings": []}
    backend.shown = {**TWO, "self": "id-0", "models": [*TWO["models"], refused]}
    backend.loaded["org/big"] = (0, 0)
    await models.until(f"document.querySelector('{card(2, '.state')}').innerText === 'refused'")
    assert await shown(models, card(2)) == "Chat,Load,Unload,Download"
    await models.click(card(2, ".unload"))
    await happens(lambda: not backend.loaded)


async def test_load_with_a_wish_and_unload(models, backend):
    await models.click(card(3, "summary"))
    await models.write(card(3, "[name=stages]"), "2")
    await models.write(card(3, "[name=context]"), "4096")
    await models.click(card(3, ".how button"))
    await happens(lambda: backend.loaded == {"org/small": (2, 4096)})
    await models.click(card(2, ".load"))
    await happens(lambda: "org/big" in backend.loaded)
    assert backend.loaded["org/big"] == (0, 0)
    backend.loaded[MODEL] = (0, 0)
    await models.click(card(1, ".unload"))
    await happens(lambda: MODEL not in backend.loaded)


async def test_an_error_is_told_where_it_belongs(models, backend):
    backend.refusal = NoCapacity("It does not fit.")
    await models.click(card(2, ".load"))
    await models.until(f"document.querySelector('{card(2, '.error')}').innerText === 'It does not fit.'")
    assert await models.text(card(3, ".error")) == ""
    backend.refusal = None
    await models.click(card(2, ".load"))
    await models.until(f"document.querySelector('{card(2, '.error')}').innerText === ''")
    models.complaints.clear()  # the browser logs each answer that is an error


async def test_why_the_cluster_refuses_a_model_is_told_once(models, backend):
    backend.refusal = NoCapacity("It does not fit by 9 GB.")
    await models.click(card(2, ".load"))
    await models.until(f"document.querySelector('{card(2, '.error')}').innerText !== ''")
    refused = {**TWO["models"][0], "id": "org/big", "state": "refused", "rings": []}
    backend.shown = {**TWO, "self": "id-0", "models": [*TWO["models"], refused]}
    await models.until(f"document.querySelector('{card(2, '.error')}').innerText === ''")
    assert "The weights need 90.0 GB" in await models.text(card(2, ".reason"))
    models.complaints.clear()  # the browser logs each answer that is an error


async def test_a_download_tells_how_far_it_is_and_what_went_wrong(models, backend):
    backend.failure = (0, HubUnavailable("The hub is away."))
    await models.click(card(2, ".pull"))
    await models.until(f"document.querySelector('{card(2, '.error')}').innerText === 'The hub is away.'")
    assert await shown(models, card(2)) == "Chat,Load,Download"


async def test_delete_asks_and_asks_again_for_what_others_fetched(models, backend):
    removed = []
    remove = backend.remove

    async def note(name, *, not_fetched=False):
        answer = await remove(name, not_fetched=not_fetched)
        removed.append((name, not_fetched))
        return answer

    backend.remove = note
    await models.click(card(3, ".remove"))
    assert "Delete org/small?" in await models.text("#delete-dialog")
    assert "from the disk of mini-1" in await models.text("#delete-dialog")
    await models.click("#delete-dialog .plain")
    await models.until("!document.querySelector('#delete-dialog').open")
    backend.refusal = ModelBusy("This node has layers of it.")
    await models.click(card(3, ".remove"))
    await models.click("#delete-model")
    await models.until("document.querySelector('#delete-error').innerText === 'This node has layers of it.'")
    backend.refusal = ModelNotFetched("Another program fetched it.")
    await models.click("#delete-model")
    await models.until("document.querySelector('#delete-error').innerText === 'Another program fetched it.'")
    assert removed == []
    assert await models.text("#delete-model") == "Delete it all the same"
    await models.click("#delete-model")
    await models.until("!document.querySelector('#delete-dialog').open")
    assert removed == [("org/small", True)]
    models.complaints.clear()


async def test_search_by_short_names_on_the_hub_and_by_id(models, backend):
    backend.on_hub = [HubModel("org/Qwen3-tiny", 1 << 30, 1234), HubModel("org/Qwen3-huge", 99 << 30, 5)]
    await models.write("#find-model", "Qwen3")
    await models.until("document.querySelectorAll('.found .model-card').length === 3")
    short, tiny, huge = [await models.text(f".found .model-card:nth-child({number})") for number in (1, 2, 3)]
    assert short.startswith("mlx-community/Qwen3-8B-4bit\n\nqwen3-8b")
    assert "1.0 GB · fits · 1,234 downloads" in tiny
    assert "The weights need 99.0 GB; the nodes have 24.0 GB for models." in huge
    assert await shown(models, ".found .model-card:nth-child(2)") == "Load,Download"
    await models.click(".found .model-card:nth-child(2) .load")
    await happens(lambda: "org/Qwen3-tiny" in backend.loaded)
    backend.refusal = HubUnavailable("No hub is here.")
    await models.evaluate("document.querySelector('#find-model').select()")
    await models.write("#find-model", "my-org/its.model")
    await models.until("document.querySelector('#models').innerText.includes('No hub is here.')")
    assert "my-org/its.model" in await models.text(".found .model-card h3")
    models.complaints.clear()


async def test_the_size_of_a_short_name_is_told_without_the_hub(models, backend):
    names = {"qwen3-8b": "mlx-community/Qwen3-8B-4bit", "qwen3-235b": "mlx-community/Qwen3-235B-4bit"}
    sizes = dict(zip(names.values(), (5 << 30, 120 << 30), strict=True))
    backend.held = overview(held("org/small"), short_names=names, sizes=sizes)
    backend.refusal = HubUnavailable("No hub is here.")
    await models.until("document.querySelectorAll('.held .model-card').length === 1")
    await models.write("#find-model", "qwen3")
    await models.until("document.querySelector('#models').innerText.includes('No hub is here.')")
    small, large = [await models.text(f".found .model-card:nth-child({number})") for number in (1, 2)]
    assert "5.0 GB · qwen3-8b · fits" in small
    assert "The weights need 120.0 GB; the nodes have 24.0 GB for models." in large
    models.complaints.clear()


async def test_a_model_is_chosen_for_the_chat(models):
    await models.click(card(3, ".talk"))
    await models.until(
        "document.body.dataset.view === 'chat' && document.querySelector('#model').value === 'org/small'"
    )


async def test_names_of_models_cannot_attack(models, backend):
    backend.held = overview(held(HOSTILE, short_names=[HOSTILE], fits=False, reason=HOSTILE))
    backend.on_hub = [HubModel(f"{HOSTILE}2", 1, 1)]
    await models.until(f"document.querySelector('.held .name')?.innerText === {json.dumps(HOSTILE)}")
    await models.click(".held .remove")
    await models.until("document.querySelector('#delete-dialog').open")
    assert HOSTILE in await models.text("#delete-dialog")
    await models.press("Escape")
    await models.write("#find-model", "img src")
    await models.until(f"document.querySelector('.found .name')?.innerText === {json.dumps(f'{HOSTILE}2')}")
    assert await models.evaluate("window.hacked") is None
    assert await models.evaluate("document.images.length") == 1, "the icon"


async def test_with_a_key_it_manages_too(serve, backend, tab):
    backend.shown, backend.held = {**TWO, "self": "id-0"}, overview(held("org/small"))
    await tab.open((await serve(api_keys=[KEY])).url)
    await tab.until("document.querySelector('#key-dialog').open")
    await tab.write("#key", KEY)
    await tab.click("#key-dialog button")
    await tab.click("[data-view=models]")
    await tab.click(".held .load")
    await happens(lambda: "org/small" in backend.loaded)


async def test_a_node_is_drained_and_used_again(page, backend):
    await page.click(".node:nth-child(2) .drain")
    await happens(lambda: backend.drained == ("id-1", True))
    drained = node_status("mini-2", 1, state="drained")
    backend.shown = {**TWO, "nodes": [TWO["nodes"][0], drained]}
    await page.until("document.querySelector('.node:nth-child(2) .state').innerText === 'drained'")
    await page.click(".node:nth-child(2) .undrain")
    await happens(lambda: backend.drained == ("id-1", False))
    backend.refusal = NoCapacity("No other node has room.")
    await page.click(".node:first-child .drain")
    await page.until("document.querySelector('.node .error').innerText === 'No other node has room.'")
    page.complaints.clear()


async def test_downloads_leave_connections_for_the_rest_of_the_page(models, backend):
    async def pull(name, client):
        yield Pulled(name, 1, 4)
        await backend.go_on.wait()

    backend.pull = pull
    backend.held = overview(*(held(f"org/m{number}", nodes=["id-1"]) for number in range(4)))
    await models.until("document.querySelectorAll('.held .pull').length === 4")
    for number in range(3):
        await models.click(card(number + 1, ".pull"))
        await models.until(f"document.querySelector('{card(number + 1, 'progress')}').value === 0.25")
    assert "Downloading: 1 B of 4 B" in await models.text(card(3))
    await models.click(card(4, ".pull"))
    await models.until(f"document.querySelector('{card(4, '.error')}').innerText === '3 downloads run already.'")
    backend.shown = {**TWO, "self": "id-0", "term": 99}
    await models.until("document.querySelector('.facts').innerText.includes('term 99')", "the status still comes")
