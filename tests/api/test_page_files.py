"""Files that go with a message, as a user of the page attaches them."""

import io
import json
from base64 import b64decode

from PIL import Image

from tests.api.paged import answered, ask, prompted

NOTES = "Milk\n```\nEggs\n```\n"
CHIPS = "#attachments .chip"


async def test_files_that_are_chosen_and_dropped(page, backend, tmp_path, server):
    notes, code = tmp_path / "notes.md", tmp_path / "two words.py"
    notes.write_text(NOTES)
    code.write_text("print(1)")
    await page.choose("#attach", notes)
    await page.until(f"document.querySelectorAll('{CHIPS}').length === 1")
    await page.drop("#messages", code)
    await page.until(f"document.querySelectorAll('{CHIPS}').length === 2")
    assert (await page.text(CHIPS)).split("\n")[::3] == ["notes.md", "two words.py"]
    await ask(page, "What is to buy?")
    await answered(page)
    sent = "notes.md:\n````md\nMilk\n```\nEggs\n```\n````\n\ntwo words.py:\n```py\nprint(1)\n```\n\nWhat is to buy?"
    assert sent in prompted(backend)
    assert await page.text(CHIPS) == ""
    assert await page.text(".user .text") == "What is to buy?"

    await page.open(server.url)
    await page.write("#find-chat", "eggs")
    await page.click("#chats .entry")
    assert "notes.md" in await page.text(".user .chip")
    await page.click(".user .actions button")
    await page.write(".editor textarea", " And why?")
    await page.click(".editor [type=submit]")
    await page.until("document.querySelector('.user .text')?.innerText === 'What is to buy? And why?'")
    await answered(page)
    assert "print(1)" in prompted(backend), "an edited message keeps its files"


async def test_a_file_that_is_pasted_is_enough_for_a_message(page, backend):
    await page.evaluate("""{
        const data = new DataTransfer();
        data.items.add(new File(["a,b"], "table.csv"));
        document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data}));
    }""")
    await page.until(f"document.querySelector('{CHIPS}') !== null")
    await page.press("Enter")
    await answered(page)
    assert "table.csv:\n```csv\na,b\n```" in prompted(backend)
    assert await page.text("#chats .entry") == "table.csv"
    assert not await page.evaluate("document.querySelector('.user .text').checkVisibility()")


async def test_what_is_no_text_is_told_and_a_file_can_be_taken_away(page, backend, tmp_path):
    files = {"a.txt": b"good", "b.bin": b"\xff\xfe", "c.bin": b"a\0b", "d.log": b"x" * (1 << 20 | 1)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    await page.choose("#attach", *(tmp_path / name for name in files))
    await page.until("document.querySelector('#attach-error').innerText")
    told = "b.bin is no text file. c.bin is no text file. d.log is too long: a text may have 1 MB."
    assert await page.text("#attach-error") == told
    await page.click(f"{CHIPS} button")
    await page.until(f"!document.querySelector('{CHIPS}')")
    assert await page.text("#attach-error") == ""
    await ask(page, "Hello")
    await answered(page)
    assert "good" not in prompted(backend)


async def test_names_of_files_cannot_attack(page):
    name = '<img src=x onerror="window.hacked=1">'
    await page.evaluate(f"""{{
        const data = new DataTransfer();
        data.items.add(new File(["x"], {json.dumps(name)}));
        document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", {{clipboardData: data}}));
    }}""")
    await page.until(f"document.querySelector('{CHIPS} .name')?.innerText === {json.dumps(name)}")
    assert await page.evaluate("window.hacked") is None


async def test_pictures_are_shown_and_sent(page, backend, tmp_path, server):
    photo, drawing = tmp_path / "photo.png", tmp_path / "drawing.webp"
    Image.new("RGB", (3000, 1500), "red").save(photo)
    Image.new("RGBA", (40, 20), (0, 0, 0, 0)).save(drawing)
    await page.choose("#attach", photo)
    await page.until("document.querySelector('#attachments img')?.naturalWidth === 1280")
    await page.drop("#messages", drawing)
    await page.until("document.querySelectorAll('#attachments img').length === 2")
    await page.evaluate("{ const real = window.fetch; window.bodies = []; window.fetch = (url, given) => {"
                        " if (given?.body) window.bodies.push(given.body); return real(url, given); }; }")  # fmt: skip
    await ask(page, "What is it?")
    await page.until("document.querySelector('.answer .error, .message .error')?.innerText.includes('picture')")
    bodies = await page.evaluate("window.bodies")
    (content,) = [json.loads(body)["messages"][-1]["content"] for body in bodies if "messages" in json.loads(body)]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    sent = [Image.open(io.BytesIO(b64decode(part["image_url"]["url"].split(",")[1]))) for part in content[:2]]
    assert [picture.size for picture in sent] == [(1280, 640), (40, 20)]
    assert sent[0].getpixel((9, 9))[0] > 250
    assert min(sent[1].getpixel((9, 9))) > 250, "what is transparent is white"
    page.complaints.clear()  # of the answer 400: this model takes no pictures

    await page.open(server.url)
    await page.click("#chats .entry")
    await page.until("document.querySelectorAll('.user img').length === 2")


async def test_what_is_no_picture_is_told(page, tmp_path):
    lying = tmp_path / "lying.png"
    lying.write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    await page.choose("#attach", lying)
    await page.until("document.querySelector('#attach-error').innerText")
    assert await page.text("#attach-error") == "lying.png is no picture that this browser can read."
