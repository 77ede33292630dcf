"""A headless Chromium for the tests of the page, driven over the DevTools protocol: real clicks and keys."""

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.patience import PATIENCE_S

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
"""Keys by name: their codes, and the text that they type."""


class Chromium:
    """A browser's process. It ends by its id."""

    def __init__(self, directory: Path) -> None:
        assert PROGRAM
        command = [PROGRAM, "--headless", "--remote-debugging-port=0", f"--user-data-dir={directory}", "--no-first-run"]
        command += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "about:blank"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to run as root otherwise
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.address = self._address(directory / "DevToolsActivePort")

    def _address(self, file: Path) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if file.exists() and len(lines := file.read_text().splitlines()) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            assert self._process.poll() is None, f"{PROGRAM} ended with {self._process.returncode}"
            time.sleep(0.05)
        raise AssertionError(f"{PROGRAM} did not start within {PATIENCE_S} s")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    @asynccontextmanager
    async def tab(self) -> AsyncIterator["Tab"]:
        """A tab of its own profile: nothing stored, no key."""
        async with aiohttp.ClientSession() as http, http.ws_connect(self.address, max_msg_size=0) as socket:
            tab = Tab(socket)
            reading = asyncio.create_task(tab.read())
            try:
                yield await tab.begun()
            finally:
                await tab.close()
                reading.cancel()
                await asyncio.wait([reading])


class Tab:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        """What the browser says is wrong: exceptions, errors, violations of the content security policy."""
        self._socket = socket
        self._events: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._context = ""
        self._session: str | None = None

    async def begun(self) -> Self:
        self._context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        made = await self.call("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(1400, 900)
        return self

    async def close(self) -> None:
        self._session = None
        await self.call("Target.disposeBrowserContext", browserContextId=self._context)

    async def read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if said.get("id") in self._answers:
                self._answers.pop(said["id"]).set_result(said)
                continue
            self._events.setdefault(said["method"], asyncio.Queue()).put_nowait(said["params"])
            if said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said["method"] == "Runtime.consoleAPICalled" and said["params"]["type"] in ("error", "assert"):
                self.complaints.append(json.dumps(said["params"]["args"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **session})
        answer = await asyncio.wait_for(self._answers[number], PATIENCE_S)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    async def heard(self, event: str, field: str) -> Any:
        """Wait for the next event of a kind that was not heard yet; return one of its fields."""
        queue = self._events.setdefault(event, asyncio.Queue())
        return (await asyncio.wait_for(queue.get(), PATIENCE_S))[field]

    # --- what it shows ------------------------------------------------------------------------------------------------

    async def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        sizes = {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
        await self.call("Emulation.setDeviceMetricsOverride", **sizes)

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'", "the page is loaded")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, once its promise is kept."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str, what: str = "") -> Any:
        """Wait until an expression is true; return its value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := await self.evaluate(expression)):
            shown = "document.body.innerText.slice(0, 2000)"
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE_S} s: {what or expression}; {await self.evaluate(shown)}"
            )
            await asyncio.sleep(0.03)
        return found

    async def text(self, selector: str) -> str:
        """Text of all elements that a selector finds, as the user sees it."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText).join('\\n')"
        return str(await self.evaluate(found))

    # --- what the user does -------------------------------------------------------------------------------------------

    async def click(self, selector: str) -> None:
        """Click in the middle of the first visible element that the selector finds."""
        x, y = await self._middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def _middle(self, selector: str) -> tuple[float, float]:
        x, y = await self.until(f"""(() => {{
            const isVisible = (each) => each.checkVisibility({{visibilityProperty: true}});
            const found = [...document.querySelectorAll({json.dumps(selector)})].find(isVisible);
            if (!found) return null;
            found.scrollIntoView({{block: "nearest"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        return x, y

    async def press(self, key: str) -> None:
        code, text = KEYS[key]
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def write(self, selector: str, text: str) -> None:
        """Click into a field and type."""
        await self.click(selector)
        await self.call("Input.insertText", text=text)

    async def choose(self, selector: str, *files: Path) -> None:
        """Click on what asks for files, and choose some."""
        await self.call("Page.setInterceptFileChooserDialog", enabled=True)
        await self.click(selector)
        node = await self.heard("Page.fileChooserOpened", "backendNodeId")
        await self.call("DOM.setFileInputFiles", files=list(map(str, files)), backendNodeId=node)

    async def drop(self, selector: str, *files: Path) -> None:
        """Drag files from elsewhere onto the middle of an element, and let them go."""
        x, y = await self._middle(selector)
        data = {"items": [], "files": list(map(str, files)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            await self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    async def download(self, selector: str, directory: Path) -> Path:
        """Click on what saves a file into `directory`; return the file once it is whole."""
        where = {"behavior": "allow", "downloadPath": str(directory), "browserContextId": self._context}
        await self.call("Browser.setDownloadBehavior", eventsEnabled=True, **where)
        await self.click(selector)
        name = await self.heard("Browser.downloadWillBegin", "suggestedFilename")
        while await self.heard("Browser.downloadProgress", "state") != "completed":
            pass
        return directory / name
