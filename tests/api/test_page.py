"""The page at `/`: how its files are served, and in a browser what its user sees, with a scripted backend."""

import asyncio
import json
import re

import pytest

from api.http.stream import StreamTiming
from api.page.routes import FILES, TYPES
from node.core.errors import RingLost
from node.core.generation import CONVERSATION, PromptProgress
from tests.api.conftest import MODEL, ScriptedModel
from tests.api.families import FAMILIES, make
from tests.api.paged import TWO, answered, ask, cluster_status, node_status, prompted

KEY = "sk-of-the-page"
HOSTILE = '<img src=x onerror="window.hacked=1">'
ATTACKS = f"""{HOSTILE} <script>window.hacked=1</script>
[a](javascript:window.hacked=1) [b](data:text/html,<script>window.hacked=1</script>) ![c](http://evil.example/c.png)
[d](https://good.example/"onmouseover="window.hacked=1) <http://good.example/e> https://good.example/f.

```"><img/src=x/onerror=window.hacked=1>
</code></pre>{HOSTILE}
```
| {HOSTILE} | <svg/onload=window.hacked=1> |
| --- | --- |
"""


# --- its files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
async def test_each_file_is_served_under_a_strict_policy(server, path):
    async with server.http.get(f"{server.url}{path}") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == f"{TYPES[FILES[path].suffix]}; charset=utf-8"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert await response.read() == FILES[path].read_bytes()
    tag = {"If-None-Match": response.headers["ETag"]}
    async with server.http.get(f"{server.url}{path}", headers=tag) as response:
        assert (response.status, await response.read()) == (304, b"")


def test_its_files_name_each_other_and_nothing_elsewhere():
    texts = {path: file.read_text() for path, file in FILES.items()}
    named = {name for text in texts.values() for name in re.findall(r'(?:"page/|from "\./)([\w.]+)"', text)}
    assert {f"/page/{name}" for name in named} == FILES.keys() - {"/"}
    assert not [path for path, text in texts.items() if re.search(r"https?://(?!www\.w3\.org/2000/svg)\w", text)]
    assert "innerHTML" not in "".join(texts.values())


def test_a_chat_is_sampled_as_in_the_terminal():
    (said,) = re.findall(r"CONVERSATION = \{(.+?)\}", FILES["/page/chats.js"].read_text())
    assert {name: float(value) for name, value in re.findall(r"(\w+): ([\d.]+)", said)} == dict(CONVERSATION)


async def test_it_needs_no_key_but_the_api_does(serve):
    server = await serve(api_keys=[KEY])
    for path in FILES:
        async with server.http.get(f"{server.url}{path}") as response:
            assert response.status == 200
    async with server.http.get(f"{server.url}/cluster/status") as response:
        assert response.status == 401


async def test_it_is_not_served_under_a_strangers_name(server):
    async with server.http.get(server.url, headers={"Host": "evil.example"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (403, "host_not_allowed")


# --- chat -------------------------------------------------------------------------------------------------------------


async def test_chat(page, backend):
    backend.say("Hello **there**!")
    await ask(page, "Who are\nyou?")
    assert await answered(page) == "Hello there!"
    assert await page.text(".assistant strong") == "there"
    assert re.search(r"\d+ tokens · first after [\d.]+ s · pippin/demo", await page.text(".figures"))
    assert "Who are\nyou?" in prompted(backend)
    assert await page.text("#chats .entry") == "Who are"


async def test_a_chat_is_there_after_a_reload(page, backend, server):
    await ask(page, "Who are you?")
    before = await answered(page)
    await page.open(server.url)
    await page.click("#chats .entry")
    assert await answered(page) == before
    await page.click("#chats [aria-label^='Delete the chat']")
    await page.until("!document.querySelector('#chats li') && !document.querySelector('.message')")
    assert await page.evaluate("Object.keys(localStorage).filter((key) => key.includes('chat')).length") == 0


async def test_regenerate_and_edit(page, backend):
    await ask(page, "One")
    await answered(page)
    await ask(page, "Two")
    assert await answered(page) == "Hello there!"
    backend.say("Something else")
    await page.click(".regenerate")
    await page.until("document.querySelector('.assistant:last-child').innerText.includes('Something else')")
    assert prompted(backend).count("Hello there!") == 1
    await answered(page)
    await page.click(".user:first-child button")
    await page.evaluate("document.querySelector('.editor textarea').select()")
    await page.write(".editor textarea", "Three ")
    await page.click(".editor [type=submit]")
    await page.until("document.querySelectorAll('.message').length === 2")
    await answered(page)
    assert "Three" in prompted(backend)
    assert "Two" not in prompted(backend)


async def test_system_prompt_temperature_and_export(page, backend, tmp_path):
    await page.click(".settings summary")
    await page.write("#system", "You are a pirate.")
    await page.write("#temperature", "0.5")
    await page.click("#prompt")
    await ask(page, "Hello")
    await answered(page)
    assert "You are a pirate." in prompted(backend)
    assert backend.requests[-1].sampling.temperature == 0.5
    saved = (await page.download("#export", tmp_path)).read_text()
    assert saved == "# Hello\n\n## System\n\nYou are a pirate.\n\n## You\n\nHello\n\n## pippin/demo\n\nHello there!\n"


@pytest.mark.parametrize("by_key", [True, False])
async def test_stop(page, backend, by_key):
    backend.pause_at = 3
    await ask(page, "Hello")
    await asyncio.wait_for(backend.paused.wait(), 10)
    await page.until("document.querySelector('.assistant > .text').innerText")
    await (page.press("Escape") if by_key else page.click("#end-answer"))
    await asyncio.wait_for(backend.idle.wait(), 10)
    await answered(page)
    assert (await page.text(".figures")).startswith("stopped · ")
    backend.pause_at = None
    await ask(page, "Go on")
    assert await answered(page) == "Hello there!"


async def test_how_far_a_long_prompt_is(serve, tab, backend):
    backend.shown, backend.pause_at = TWO, 0
    backend.progress = [PromptProgress(1280, 4096)]
    await tab.open((await serve(StreamTiming(progress_s=0.0))).url)
    await tab.until("document.querySelector('#model').value")
    await ask(tab, "Hello")
    await tab.until("document.querySelector('.pause').innerText === 'prompt: 1280 of 4096 tokens'")
    assert await tab.evaluate("document.querySelector('.assistant > progress:not([hidden])').value") == 1280 / 4096
    backend.go_on.set()
    assert await answered(tab) == "Hello there!"
    assert await tab.text(".pause") == ""
    assert not await tab.evaluate("document.querySelector('.assistant > progress').checkVisibility()")
    assert tab.complaints == []


async def test_the_end_stays_in_sight_where_a_keyboard_opens(page, backend):
    await ask(page, "Hello\n\n" * 60)
    await answered(page)
    hidden = "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)(document.querySelector('#messages'))"
    assert await page.evaluate(hidden) < 60
    await page.resize(390, 844, mobile=True)
    await page.until(f"innerWidth === 390 && {hidden} < 60", "the end is in sight")
    for height in range(840, 499, -20):  # an opening keyboard
        await page.resize(390, height, mobile=True)
    await page.until(f"innerHeight === 500 && {hidden} < 60", "the end is in sight")
    frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    await page.evaluate(frames)
    await page.evaluate(f"document.querySelector('#messages').scrollTop = 0; {frames}")
    await page.resize(390, 844, mobile=True)
    await page.until("innerHeight === 844")
    await page.evaluate(frames)
    assert await page.evaluate("document.querySelector('#messages').scrollTop") == 0, "who reads above stays there"


async def test_reasoning_is_folded(page, backend, tmp_path):
    backend.model = ScriptedModel(MODEL, 2048, make(FAMILIES["qwen"], tmp_path))
    backend.say("<think>\nhm, **hm**\n</think>\n\nyes")
    await ask(page, "Is it?")
    assert await answered(page) == "yes"
    assert re.fullmatch(r"Thought for [\d.]+ s", await page.text(".reasoning"))
    await page.click(".reasoning summary")
    assert (await page.text(".reasoning .text")).strip() == "hm, hm"


async def test_an_answer_that_fails_keeps_what_came(page, backend):
    backend.failure = (3, RingLost("The ring ended.", hint="Try again."))
    await ask(page, "Hello")
    assert await answered(page)
    assert await page.text(".assistant .error") == "The ring ended. Try again."
    backend.failure = None
    await page.click(".regenerate")
    await page.until("document.querySelector('.assistant .error').innerText === ''")
    assert await answered(page) == "Hello there!"


async def test_another_model(page, backend):
    await page.evaluate("""(() => {
        const select = document.querySelector("#model");
        select.value = [...select.options].at(-1).value;
        select.dispatchEvent(new Event("change"));
    })()""")
    await page.until("document.activeElement.id === 'find-model' && document.body.dataset.view === 'models'")
    assert await page.evaluate("document.querySelector('#model').value") == MODEL


async def test_a_model_that_is_ready_comes_before_one_that_is_first_by_name(page, backend, server):
    status = cluster_status(node_status("mini-1", 0))
    status["models"] = [{**status["models"][0], "id": "a/first", "state": "loading", "rings": []}, *status["models"]]
    backend.shown = status
    await page.open(server.url)
    await page.until("document.querySelector('#model option')?.innerText === 'a/first (loading)'")
    await page.until(f"document.querySelector('#model').value === {json.dumps(MODEL)}")


# --- strangers' texts -------------------------------------------------------------------------------------------------


async def is_harmless(tab):
    assert await tab.evaluate("window.hacked") is None
    assert (
        await tab.evaluate(
            "document.querySelectorAll('script:not([src=\"page/main.js\"]), svg [onload], iframe').length"
        )
        == 0
    )
    assert await tab.evaluate("[...document.images].map((each) => each.getAttribute('src')).join()") == "page/icon.svg"
    assert (
        await tab.evaluate("""[...document.querySelectorAll('*')].flatMap((each) => [...each.attributes])
        .filter(({name}) => name.startsWith('on')).length""")
        == 0
    )


async def test_answers_cannot_attack(page, backend):
    backend.say(ATTACKS)
    await ask(page, ATTACKS.splitlines()[0])
    shown = await answered(page)
    assert HOSTILE in shown
    links = json.loads(await page.evaluate("JSON.stringify([...document.links].map((each) => [each.href, each.rel]))"))
    assert {rel for _, rel in links} == {"", "noopener noreferrer nofollow"}
    outside = [href for href, rel in links if rel]
    assert outside[0] == "http://evil.example/c.png", "a picture is a link, and is not loaded"
    assert outside[-2:] == ["http://good.example/e", "https://good.example/f"]
    assert all(re.match(r"https?://(good|evil)\.example/", href) for href in outside)
    await is_harmless(page)


async def test_names_cannot_attack(page, backend):
    warning = {"code": HOSTILE, "severity": HOSTILE, "text": HOSTILE, "hint": HOSTILE}
    node = node_status(HOSTILE, 0, chip=HOSTILE, version=HOSTILE, state=HOSTILE, reason=HOSTILE)
    status = cluster_status(node, warnings=[warning])
    status["models"][0]["id"] = status["cluster"] = status["api"] = HOSTILE
    backend.shown = status
    await page.until(f"document.querySelector('.node .name')?.innerText === {json.dumps(HOSTILE)}")
    await page.until(f"document.querySelector('.warnings').innerText.includes({json.dumps(HOSTILE)})")
    await is_harmless(page)


async def test_the_policy_stops_what_would_get_through(page):
    """The second line of defence: if this page had a hole, its policy would close it."""
    refused = await page.evaluate("""(() => {
        const image = document.createElement("img");
        image.src = "http://evil.example/x.png";
        document.body.append(image);
        const attempts = [
            () => (document.body.innerHTML = "<b>x</b>"),
            () => image.setAttribute("onerror", "window.hacked = 1"),
        ];
        return attempts.map((attempt) => { try { attempt(); } catch (error) { return error.name; } });
    })()""")
    assert refused == ["TypeError", "TypeError"]
    while "evil.example" not in (complaint := (await page.heard("Log.entryAdded", "entry"))["text"]):
        pass
    assert "Content Security Policy" in complaint
    page.complaints.clear()


MARKDOWN = {
    "Hello\nthere": "<p>Hello\nthere</p>",
    "# One\ntwo\n\n---\n#### Three ##": "<h3>One</h3><p>two</p><hr><h6>Three</h6>",
    "a *b* **c *d*** _e_ f_g_h `i*j*` ~~k~~ 2*3*4": "<p>a <em>b</em> <strong>c <em>d</em></strong> <em>e</em> f_g_h "
    "<code>i*j*</code> <s>k</s> 2<em>3</em>4</p>",
    "- one\n- two\n  - three\n\n1. x\n2. y": "<ul><li>one</li><li>two<ul><li>three</li></ul></li></ul>"
    "<ol><li>x</li><li>y</li></ol>",
    "3. a\n\n   b\n4. c": '<ol start="3"><li>a<p>b</p></li><li>c</li></ol>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    r"\*a\* 1 < 2 & <b>": "<p>*a* 1 &lt; 2 &amp; &lt;b&gt;</p>",
    "`` a`b `` and `open": "<p><code> a`b </code> and `open</p>",
    "a | b\n--|--\n1 | **2**": "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>"
    "<td><strong>2</strong></td></tr></tbody></table>",
    "[a](https://x.example/b_(c)) [d](ftp://x) (https://x.example/y).": '<p><a href="https://x.example/b_(c)">a</a> '
    '[d](ftp://x) (<a href="https://x.example/y">https://x.example/y</a>).</p>',
    "- a\n  ```\n  x\n\n  y\n  ```\n- b": "<ul><li>a<figure><pre>x\n\ny</pre></figure></li><li>b</li></ul>",
    "~~~py\n```\n~~~\nz": "<figure><pre>```</pre></figure><p>z</p>",
}
RENDER = """(async (texts) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    return texts.map((text) => {
        const parent = document.createElement("div");
        for (let end = 0; end <= text.length; end += 3) renderMarkdown(parent, text.slice(0, end)); // as it arrives
        renderMarkdown(parent, text);
        return parent.innerHTML;
    });
})"""


async def test_markdown(page):
    made = await page.evaluate(f"{RENDER}({json.dumps(list(MARKDOWN))})")
    for text, html in zip(made, MARKDOWN.values(), strict=True):
        plain = re.sub(r' (class|tabindex|target|rel|title|type)="[^"]*"', "", text)
        plain = re.sub(r"<figcaption>.*?</figcaption>|<div>|</div>", "", plain)
        assert re.sub(r"<pre><code>(.*?)</code></pre>", r"<pre>\1</pre>", plain, flags=re.DOTALL) == html


async def test_markdown_takes_no_longer_for_odd_texts(page):
    odd = [
        "*" * 30_000,
        "`" * 30_000,
        "[" * 30_000,
        "> " * 9_000,
        "- " * 9_000,
        "-\n" * 9_000,
        "_a" * 10_000,
        "| " * 9_000,
    ]
    odd += ["```" + " " * 30_000 + "`", "```" + "a" * 30_000 + "`", "~" * 30_000 + "`", "# " * 15_000 + "x"]
    odd += ["**a" * 6_000, "<http://" * 3_000, "\n\n- x" * 3_000 + "\n" * 9_000, "[a](" * 5_000]
    for text in odd:
        took = await page.evaluate(f"""(async (text) => {{
            const {{ renderMarkdown }} = await import("/page/markdown.js");
            return Math.min(...[1, 2, 3].map(() => {{
                const begun = performance.now();
                renderMarkdown(document.createElement("div"), text);
                return performance.now() - begun;
            }}));
        }})({json.dumps(text)})""")
        assert took < 2000, text[:10]


GROWING = """(async ([text, end]) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    const parent = document.createElement("div");
    renderMarkdown(parent, text);
    const before = new Set(parent.querySelectorAll("*"));
    renderMarkdown(parent, text + end);
    const all = [...parent.querySelectorAll("*")];
    return [all.length, all.filter((each) => !before.has(each)).length, parent.textContent];
})"""


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("".join(f"- item {number}\n" for number in range(20_000)), "- last"),
        ("".join(f"{number}. item\n\n" for number in range(20_000)), "20000. last"),
        ("a | b\n--|--\n" + "1 | 2\n" * 20_000, "3 | last"),
        ("> *a*\n" * 20_000, "> last"),
        ("*a* line\n" * 20_000, "last"),
    ],
)
async def test_a_word_more_makes_little_anew_however_long_a_block_has_become(page, text, end):
    _, anew, shown = await page.evaluate(f"{GROWING}({json.dumps([text, end])})")
    assert anew < 3_000
    assert shown.endswith("last")


@pytest.mark.parametrize("text", ["|" * 200_000 + "\n-|-\n1|2", "|a\n" + "-|" * 200_000, "---\n" * 200_000])
async def test_what_a_browser_fails_at_is_shown_as_it_was_written(page, backend, text):
    """Its regular expressions and its calls are of bounded depth and width; the rest of an answer is shown, too."""
    growing = json.dumps(["*Before*\n\n" + text, "\n\n*after*"])
    total, _, shown = await page.evaluate(f"{GROWING}({growing})")
    assert shown.startswith("Before")
    assert shown.endswith("after")
    assert total >= 3


async def test_a_block_that_fails_is_shown_as_it_was_written(page):
    shown = await page.evaluate("""(async () => {
        const { renderMarkdown } = await import("/page/markdown.js");
        const parent = document.createElement("div");
        const made = document.createElement;
        document.createElement = (tag) => {
            if (tag === "ul") throw new RangeError("Maximum call stack size exceeded");
            return made.call(document, tag);
        };
        try { renderMarkdown(parent, "# One\\n\\n- *two*\\n\\nthree"); } finally { document.createElement = made; }
        return [...parent.children].map((each) => each.outerHTML).join("");
    })()""")
    assert shown == "<h3>One</h3><p>- *two*</p><p>three</p>"


GROWTH = """(async (texts) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    return texts.map((text) => Math.min(...[1, 2, 3, 4, 5].map(() => {
        const begun = performance.now();
        renderMarkdown(document.createElement("div"), text);
        return performance.now() - begun;
    })));
})"""


@pytest.mark.parametrize(
    "unit",
    ["```\nx\n```\n", "- x\n\n", "- ```\n  ```\n", "> x\n", "x\n\n", "|a|b|\n|-|-|\n|1|2|\n\n", "1. x\n- y\n"],
)
async def test_the_time_grows_as_the_text_does(page, unit):
    """Four times the text takes four times as long, and sixteen times if each line looks at all others."""
    short, long = (unit * (length // len(unit)) for length in (40_000, 160_000))
    a, b = await page.evaluate(f"{GROWTH}({json.dumps([short, long])})")
    assert b < 10 * a + 50, (a, b)


# --- the key, and the cluster -----------------------------------------------------------------------------------------


async def test_the_key(serve, backend, tab):
    backend.shown = TWO
    server = await serve(api_keys=[KEY])
    await tab.open(server.url)
    await tab.until("document.querySelector('#key-dialog').open")
    await tab.write("#key", "wrong")
    await tab.press("Enter")
    await tab.until("document.querySelector('#key-error').innerText.includes('not accepted')")
    await tab.write("#key", KEY)
    await tab.click("#key-dialog button")
    await tab.until("document.querySelectorAll('.node').length === 2")
    await ask(tab, "Hello")
    assert await answered(tab) == "Hello there!"
    await tab.open(server.url)
    await tab.until("document.querySelectorAll('.node').length === 2", "the session keeps the key")
    assert KEY not in await tab.evaluate("JSON.stringify(localStorage)")
    await tab.click("#new-chat")
    await tab.evaluate("""sessionStorage.clear();
        document.querySelector('#prompt').value = 'Again';
        document.querySelector('#composer').requestSubmit()""")
    await tab.until("document.querySelector('#prompt').value === 'Again'", "the message can be sent again")
    assert await tab.text("#chats .entry") == "Hello"


async def test_the_cluster(page, backend):
    nodes = await page.text(".nodes")
    assert "mini-1" in nodes
    assert "→ mini-2 · wi-fi en5 · 8.1 ms · 30.0 MB/s" in nodes
    assert "9.0 GB used, 3.0 GB free" in nodes
    assert (await page.text(".node:has(.head:not([hidden])) .name")) == "mini-2"
    assert await page.text(".band .layers") == "0–3\n4–7"
    assert "21.4" in await page.text(".plots")
    assert await page.evaluate(
        "[...document.querySelectorAll('code')].some(({innerText}) => innerText === 'http://home.local:52415/v1')"
    )
    slow = {"code": "slow-link", "severity": "warning", "text": "It is slow.", "hint": "Plug in `a cable`."}
    load = {"model": MODEL, "start": 0, "end": 4, "state": "fetching", "progress": 0.58, "done_bytes": 58 << 20}
    load |= {"total_bytes": 100 << 20, "bytes_per_second": 7 << 20, "seconds_left": 6}
    memory = {
        "total": 16 << 30,
        "usable": 12 << 30,
        "used": 1 << 30,
        "weights": 5 << 30,
        "kv": 3 << 30,
        "free": 4 << 30,
    }
    stored = {"kv_on_disk": 2 << 30, "kv_uncopied": 5 << 20}
    busy = node_status("mini-1", 0, state="loading", loads=[load], memory=memory, **stored)
    dead = node_status("mini-2", 1, state="failed", last_seen_s=3.0)
    backend.shown = {**cluster_status(busy, dead, warnings=[slow]), "self": "id-0"}
    await page.until("document.querySelector('.node.gone .name')?.innerText === 'mini-2'")
    assert await page.text(".warnings") == "It is slow.\nPlug in a cable."
    assert await page.text(".warnings code") == "a cable"
    card = await page.text(".node:first-child")
    assert "fetching layers 0–3 of demo: 58.0 MB of 100.0 MB, 7.0 MB/s, 6 s left" in card
    assert await page.evaluate("document.querySelector('.node progress').value") == 0.58
    assert "5.0 GB weights, 3.0 GB KV, 4.0 GB free, 2.0 GB KV on disk (5.0 MB to be copied)" in card
    assert "serves this page" in card
    assert await page.text(".layers.gone") == "4–7"


async def test_warnings_of_one_code_are_one_and_notes_are_folded(page, backend):
    def warning(code, severity, node, text, hint=""):
        return {"code": code, "severity": severity, "node": node, "text": text, "hint": hint}

    low = [warning("disk-low", "warning", name, f"{name} is full.", "Run `hf cache rm`.") for name in ("a", "b")]
    notes = [warning("may-sleep", "info", "a", "a sleeps."), warning("open-cluster", "info", "", "It is open.")]
    backend.shown = cluster_status(node_status("a", 0), warnings=[*low, *notes])
    await page.until("document.querySelectorAll('.warnings .warning').length === 1")
    assert await page.text(".warnings .warning") == "2 nodes: a is full. b is full.\nRun hf cache rm."
    assert await page.text(".warnings .warning code") == "hf cache rm"
    named = [each | {"node": f"id-{at}"} for at, each in enumerate(low)]
    nodes = [node_status(name, at) for at, name in enumerate("ab")]
    backend.shown = cluster_status(*nodes, warnings=[*named, *notes])
    await page.until("document.querySelector('.warnings .warning')?.innerText.startsWith('2 nodes (a, b): is full.')")
    assert await page.text("details:has(.notes) > summary") == "2 notes"
    assert not await page.evaluate("document.querySelector('.notes').checkVisibility()")
    await page.evaluate("document.querySelector('details:has(.notes) > summary').click()")
    assert await page.text(".notes") == "a sleeps.\nIt is open."
    backend.shown = cluster_status(node_status("a", 0))
    await page.until(
        "document.querySelector('details:has(.notes)').hidden && !document.querySelector('.warnings .warning')"
    )


async def test_a_node_that_is_gone(serve, backend, tab):
    backend.shown = TWO
    server = await serve()
    await tab.open(server.url)
    await tab.until("document.querySelectorAll('.node').length === 2")
    backend.shown = object()  # is no JSON: the server fails
    await tab.until("document.querySelector('.cluster.old .notice')?.innerText.includes('The server failed')")
    backend.shown = TWO
    await tab.until("!document.querySelector('.cluster.old')")


async def test_a_node_that_hangs(page):
    await page.evaluate(
        "{ const after = AbortSignal.timeout; AbortSignal.timeout = () => after.call(AbortSignal, 50); }"
    )
    await page.call("Fetch.enable", patterns=[{"urlPattern": "*/cluster/status"}])  # each is held up
    await page.until("document.querySelector('.cluster.old .notice')?.innerText.includes('does not answer')")
    await page.call("Fetch.disable")
    await page.until("!document.querySelector('.cluster.old')")


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (1000, 700), (390, 800), (320, 568)])
async def test_it_fits_and_can_be_used_with_keys_only(page, width, height):
    await page.resize(width, height, mobile=width < 500)
    await page.until(f"window.innerWidth === {width}")
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    await page.evaluate("document.activeElement.blur()")
    unnamed = """[...document.querySelectorAll('button, select, input, textarea, a')]
        .filter((each) => each.checkVisibility({visibilityProperty: true}))
        .filter((each) => !(each.innerText || each.ariaLabel || each.labels?.length)).length"""
    assert await page.evaluate(unnamed) == 0
    reached, ringless = set(), set()
    for _ in range(25):
        await page.press("Tab")
        reached.add(await page.evaluate("document.activeElement.id"))
        ringless.add(
            await page.evaluate("""(({activeElement: it, body}) =>
            it !== body && getComputedStyle(it).outlineStyle === 'none' ? it.id || it.outerHTML : '')(document)""")
        )
    assert {"prompt", "model", "export", "send"} <= reached
    assert ringless <= {"prompt", ""}, "the composer has the ring of its text"
