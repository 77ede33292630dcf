"""Settings of a chat, and the list of chats, as a user of the page has them."""

import json

from tests.api.conftest import ScriptedModel
from tests.api.families import FAMILIES, make
from tests.api.paged import MODEL, answered, ask

VALUES = {
    "temperature": "0.5",
    "top_p": "0.8",
    "top_k": "20",
    "min_p": "0.05",
    "repetition_penalty": "1.1",
    "max_completion_tokens": "7",
}


async def opened(page):
    await page.click(".settings summary")


async def rename(page, name):
    """Type in place of the name, which is selected."""
    await page.until("document.activeElement.className === 'rename'")
    await page.call("Input.insertText", text=name)


async def placeholder(page, name, text):
    await page.until(f"document.querySelector('#{name}').placeholder === {json.dumps(text)}")


async def test_fields_show_the_defaults_of_the_model(page, backend):
    backend.model.sampling = {"temperature": 0.6, "top_k": 20.0}
    await opened(page)
    await placeholder(page, "temperature", "0.6")
    await placeholder(page, "top_k", "20")
    await placeholder(page, "top_p", "0.95")
    await placeholder(page, "max_completion_tokens", "up to 2048")
    assert await page.evaluate("document.querySelector('#thinking').checkVisibility()")
    await page.evaluate("""(() => {
        const select = document.querySelector("#model");
        select.value = "plain";
        select.dispatchEvent(new Event("change"));
    })()""")
    await placeholder(page, "temperature", "0.7")
    assert not await page.evaluate("document.querySelector('#thinking').checkVisibility()"), "it does not think"


async def test_settings_are_sent_kept_with_the_chat_and_forgotten(page, backend, server):
    backend.say("One two three four five six seven eight nine ten")
    await opened(page)
    for name, value in VALUES.items():
        await page.write(f"#{name}", value)
    await page.write("#stop", "###")
    await page.click("#prompt")
    await ask(page, "Hello")
    await answered(page)
    sampling = backend.requests[-1].sampling
    found = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)
    assert found == (0.5, 0.8, 20, 0.05, 1.1)
    assert backend.requests[-1].max_tokens == 7
    assert "cut at the limit of tokens" in await page.text(".figures")

    await page.open(server.url)
    await page.click("#chats .entry")
    await opened(page)
    assert await page.evaluate("document.querySelector('#min_p').value") == "0.05"
    assert await page.evaluate("document.querySelector('#stop').value") == "###"
    await page.click("#reset-settings")
    await page.click("#prompt")
    await ask(page, "Again")
    await page.until("document.querySelectorAll('.assistant').length === 2")
    await answered(page)
    assert backend.requests[-1].sampling.temperature == 0.7
    assert backend.requests[-1].max_tokens > 7


async def test_a_value_out_of_range_is_not_sent(page, backend):
    await opened(page)
    await page.write("#temperature", "9")
    await page.click("#top_p")
    await page.click("#prompt")
    await ask(page, "Hello")
    await answered(page)
    assert backend.requests[-1].sampling.temperature == 0.7


async def test_a_stop_text_ends_the_answer(page, backend):
    backend.say("One two three")
    await opened(page)
    await page.write("#stop", "two")
    await page.click("#prompt")
    await ask(page, "Count")
    assert await answered(page) == "One"


async def test_thinking_is_turned_off(page, backend, tmp_path):
    backend.model = ScriptedModel(MODEL, 2048, make(FAMILIES["qwen"], tmp_path))
    backend.say("yes")
    await opened(page)
    await page.evaluate("""(() => {
        const select = document.querySelector("#thinking");
        select.value = "off";
        select.dispatchEvent(new Event("change"));
    })()""")
    await page.click("#prompt")
    await ask(page, "Is it?")
    await answered(page)
    sent = await page.evaluate("""(async () => {
        const { allChats, requestOf } = await import("/page/chats.js");
        return requestOf(allChats()[0]).chat_template_kwargs;
    })()""")
    assert sent == {"enable_thinking": False}


async def test_chats_are_found_and_renamed(page, backend, server):
    backend.say("The owl sleeps.")
    await ask(page, "A bird?")
    await answered(page)
    await page.click("#new-chat")
    backend.say("The fox runs.")
    await ask(page, "An animal?")
    await answered(page)
    await page.write("#find-chat", "OWL")
    await page.until("document.querySelectorAll('#chats li').length === 1")
    assert await page.text("#chats .entry") == "A bird?"
    await page.click("#chats [aria-label='Rename the chat']")
    await rename(page, "Birds of the night")
    await page.press("Enter")
    await page.until("document.querySelector('#chats .entry')?.innerText === 'Birds of the night'")
    await page.click("#chats [aria-label='Rename the chat']")
    await page.press("Escape")
    await page.until("document.querySelector('#chats .entry')?.innerText === 'Birds of the night'")
    await page.write("#find-chat", " and more")
    await page.until("document.querySelector('#no-chat').checkVisibility()")
    await page.open(server.url)
    assert await page.text("#chats .entry") == "An animal?\nBirds of the night", "a new name makes no chat newer"


async def test_the_chat_that_is_open_keeps_its_new_name(page, backend):
    await ask(page, "One")
    await answered(page)
    await page.click("#chats [aria-label='Rename the chat']")
    await rename(page, "Mine")
    await page.press("Enter")
    await page.until("document.querySelector('#chats .entry')?.innerText === 'Mine'")
    await ask(page, "Two")
    await page.until("document.querySelectorAll('.assistant').length === 2")
    await answered(page)
    assert await page.text("#chats .entry") == "Mine"
