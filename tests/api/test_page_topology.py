"""The picture of the cluster: nodes on a ring, their links, and whether tokens flow."""

import itertools
import json

import pytest

from tests.api.paged import TWO, cluster_status, link_to, node_status

BOXES = """JSON.stringify([...document.querySelectorAll('.station > .disc')].map((each) => {
    const box = each.getBoundingClientRect();
    return [box.x, box.y, box.width];
}))"""


async def written(page, selector):
    """Texts in the picture, where elements have no innerText."""
    found = f"[...document.querySelectorAll({json.dumps(selector)})].filter((each) => each.textContent)"
    return await page.evaluate(f"{found}.map((each) => each.textContent).join('\\n')")


def ring_of(count, **changed):
    nodes = [
        node_status(f"mini-{n + 1}", n, link=link_to((n + 1) % count) if count > 1 else None) for n in range(count)
    ]
    return {**cluster_status(*nodes), **changed}


async def test_two_nodes_and_their_links(page, backend):
    await page.until("document.querySelectorAll('.station').length === 2")
    assert await written(page, ".station .layers-text") == "0–3\n4–7"
    assert await written(page, ".station .name") == "mini-1\nmini-2"
    assert await written(page, ".labels tspan") == "8.1 ms\n30.0 MB/s\n8.1 ms\n30.0 MB/s"
    assert await written(page, ".centre text") == "demo\n21.4\ntokens/s"
    assert await page.evaluate("document.querySelectorAll('.hop.flows.wireless').length") == 2
    told = await page.evaluate("document.querySelector('.topology title').textContent")
    assert "mini-1: ready, layers 0–3" in told
    assert "mini-1 to mini-2, 8.1 ms, 30.0 MB/s" in told
    idle = json.loads(json.dumps(TWO))
    idle["models"][0]["rings"][0]["requests"] = {"running": 0, "queued": 0}
    backend.shown = idle
    await page.until("document.querySelectorAll('.hop:not(.flows)').length === 2")


@pytest.mark.parametrize(("count", "spare"), [(1, 0), (1, 5), (2, 3), (3, 0), (4, 1), (8, 0), (16, 6)])
async def test_nodes_stand_apart_and_within_the_picture(page, backend, count, spare):
    ring = ring_of(count)
    others = [node_status(f"spare-{n}", n, layers=[]) for n in range(count, count + spare)]
    backend.shown = {**ring, "nodes": [*ring["nodes"], *others]}
    await page.until(f"document.querySelectorAll('.station').length === {count + spare}")
    assert await page.evaluate("document.querySelectorAll('.hop').length") == (count if count > 1 else 0)
    await page.click("[data-view=cluster]")
    boxes = json.loads(await page.evaluate(BOXES))
    assert all(y < 900 for _, y, _ in boxes), "however long the list of nodes is beside it"
    for (x, y, width), (other_x, other_y, _) in itertools.combinations(boxes, 2):
        assert (x - other_x) ** 2 + (y - other_y) ** 2 > width**2
    names = json.loads(await page.evaluate(BOXES.replace("disc", "name")))
    for (x, y, width), (other_x, other_y, _) in itertools.combinations(names, 2):
        assert abs(y - other_y) > 8 or x + width < other_x or other_x < x, "no name is written over another"
    left, top, right, bottom = json.loads(
        await page.evaluate("""(() => {
            const box = document.querySelector(".topology svg").getBoundingClientRect();
            return JSON.stringify([box.left, box.top, box.right, box.bottom]);
        })()""")
    )
    assert all(left <= x and top <= y and x + width <= right and y + width <= bottom for x, y, width in boxes)


async def test_how_far_a_prompt_is(page, backend):
    """While nothing is answered; the model's card has the rate and the time that is left, too."""
    begun = json.loads(json.dumps(TWO))
    begun["models"][0] |= {
        "tokens_per_second": 0.0,
        "prompts": {"tokens": 4096, "done": 1280, "tokens_per_second": 21.0},
    }
    backend.shown = begun
    await page.until("document.querySelector('.centre .unit').textContent === 'of the prompt'")
    assert await written(page, ".centre text") == "demo\n31 %\nof the prompt"
    assert "0.0 tokens/s · prompt: 1280 of 4096 tokens, 21.0 tokens/s, 2 min left" in await page.text(".model-card")
    begun["models"][0]["tokens_per_second"] = 8.6
    backend.shown = json.loads(json.dumps(begun))
    await page.until("document.querySelector('.centre .unit').textContent === 'tokens/s'")


async def test_a_node_beside_the_ring_has_room_for_its_layers_only(page, backend):
    """One whose ring goes away, as it is drained."""
    spare = node_status("mini-3", 2, layers=[{"model": "org/demo", "start": 4, "end": 8}])
    backend.shown = {**TWO, "nodes": [*TWO["nodes"], spare]}
    await page.until("document.querySelectorAll('.station').length === 3")
    assert await written(page, ".station:nth-child(3) text") == "4–7\nmini-3\nApple M4"


async def test_a_dead_node_and_one_that_comes(page, backend):
    three = ring_of(3)
    dead = {**three["nodes"][2], "state": "failed", "link": None, "layers": [], "last_seen_s": 3.0}
    backend.shown = {**TWO, "nodes": [*TWO["nodes"], dead]}
    await page.until("document.querySelectorAll('.station').length === 3")
    assert await written(page, ".station.gone text") == "✕\nmini-3\nfailed"
    assert await page.evaluate("document.querySelectorAll('.hop').length") == 2
    assert await page.evaluate("document.querySelectorAll('.labels text').length") == 2, (
        "the others stand next to each other"
    )
    backend.shown = three
    await page.until("!document.querySelector('.station.gone')")
    assert await page.evaluate("document.querySelectorAll('.hop').length") == 3


async def test_rings_of_two_models_and_no_model(page, backend):
    four = ring_of(4)
    stages = [{"node": f"id-{n}", "start": 0, "end": 2} for n in (3, 1)]
    ring = {**four["models"][0]["rings"][0], "id": "r2", "stages": stages}
    four["models"].append({**four["models"][0], "id": "org/other", "rings": [ring], "tokens_per_second": 8.6})
    four["nodes"][1]["layers"].append({"model": "org/other", "start": 0, "end": 2})
    backend.shown = four
    await page.until("document.querySelectorAll('.hop').length === 6")
    assert await page.evaluate("document.querySelectorAll('.labels text').length") == 4, "of the ring that goes round"
    assert await written(page, ".centre text") == "2 models\n30.0\ntokens/s"
    assert (await written(page, ".station:nth-child(2) text")).startswith("2 models\n6 layers")
    many = json.loads(json.dumps(four))
    many["models"][1]["rings"][0]["stages"] = [{"node": f"id-{n}", "start": 0, "end": 120} for n in (3, 1)]
    backend.shown = many
    await page.until("document.querySelector('.station:nth-child(2) .layers-text').textContent === '124 layers'")
    wide, disc = [
        f"document.querySelector('.station:nth-child(2) .{name}').getBBox().width" for name in ("long", "disc")
    ]
    assert await page.evaluate(f"{wide} < {disc} - 2"), "the text is within the node"
    backend.shown = {**ring_of(1), "models": []}
    await page.until("document.querySelector('.centre').textContent === 'No model is loaded'")
    assert await page.evaluate("document.querySelectorAll('.hop').length") == 0


async def test_a_ring_that_goes_is_not_drawn(page, backend):
    """Its nodes keep its layers until the new one is ready."""
    two = json.loads(json.dumps(TWO))
    stages = [{"node": "id-0", "start": 0, "end": 8}]
    two["models"][0]["rings"].append(
        {**two["models"][0]["rings"][0], "id": "r0", "state": "retiring", "stages": stages}
    )
    two["nodes"][0]["layers"].append({"model": "pippin/demo", "start": 0, "end": 8})
    backend.shown = two
    await page.until("document.querySelectorAll('.band.retiring').length === 1")
    assert await written(page, ".station .layers-text") == "0–3\n4–7"


async def test_rings_that_share_links_have_one_line(page, backend):
    two = json.loads(json.dumps(TWO))
    idle = {**two["models"][0]["rings"][0], "id": "r2", "requests": {"running": 0, "queued": 0}}
    two["models"].append({**two["models"][0], "id": "org/other", "rings": [idle]})
    backend.shown = two
    await page.until("document.querySelector('.centre').textContent.startsWith('2 models')")
    assert await page.evaluate("document.querySelectorAll('.hop.flows').length") == 2
    assert await page.evaluate("document.querySelectorAll('.hop, .labels text').length") == 4
