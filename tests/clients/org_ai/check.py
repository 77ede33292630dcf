"""Emacs org-ai: its stream parser, rule by rule, without Emacs. check.el runs the real one where org-ai is installed.

The rules (org-ai--url-request-on-change-function, org-ai--normalize-response, org-ai--insert-stream-response): at each
change it searches the buffer for "data: "; the rest of the line is `[DONE]` or JSON; a line that can't be parsed yet is
tried again when more has arrived. Of a delta it uses the role, else the content, else the finish reason: a delta with a
role loses its content, and an `event:` or a role in a later delta would spoil the text.
"""

import http.client
import json
from urllib.parse import urlsplit

from harness import ASK, HELLO, MODEL, URL, run


class Buffer:
    """The text that org-ai writes into the document."""

    def __init__(self) -> None:
        self.text = ""
        self.done = 0
        self._came = ""
        self._read = 0
        self._role = ""
        self._begun = False

    def change(self, more: str) -> None:
        self._came += more
        while (found := self._came.find("data: ", self._read)) >= 0:
            line = self._came[found + 6 :].partition("\n")[0]
            if line == "[DONE]":
                self.done += 1
            else:
                try:
                    told = json.loads(line)
                except ValueError:
                    return  # incomplete so far
                self._insert(told)
            self._read = found + 6 + len(line)

    def _insert(self, told: dict) -> None:
        if "error" in told:
            raise RuntimeError(told["error"]["message"])
        for choice in told["choices"]:
            delta = choice["delta"]
            if role := delta.get("role"):
                if role != self._role:
                    self._role = role
                    self.text += {"assistant": "\n[AI]: ", "user": "\n[ME]: ", "system": "\n[SYS]: "}.get(role, "")
            elif delta.get("content"):
                if self._begun or delta["content"].strip():
                    self.text += delta["content"]
                self._begun = True
            elif choice["finish_reason"]:
                self.text += "\n\n[ME]: "


def _stream(size: int, **more: object) -> Buffer:
    """Return the text of a stream that is read in pieces of `size` bytes."""
    where = urlsplit(URL)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    messages = [{"role": "system", "content": "You are a helpful assistant inside Emacs."}, *ASK]
    body = {"messages": messages, "model": MODEL, "stream": True, **more}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer any"}
    connection.request("POST", f"{where.path}/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    buffer, held = Buffer(), b""
    while part := response.read(size):
        held += part
        whole = held.decode(errors="ignore")  # a piece may end within a character
        held = held[len(whole.encode()) :]
        buffer.change(whole)
    connection.close()
    return buffer


def stream() -> None:
    texts = set()
    for size in (1, 7, 100, 65536):
        buffer = _stream(size, temperature=0)
        assert buffer.done == 1
        assert buffer.text.startswith("\n[AI]: ")
        assert buffer.text.endswith("\n\n[ME]: ")
        assert buffer.text.count("[AI]") == 1
        texts.add(buffer.text)
    assert len(texts) == 1


def the_same_as_plain() -> None:
    where = _stream(4096, temperature=0, messages=ASK)
    assert where.text == f"\n[AI]: {HELLO}\n\n[ME]: "


if __name__ == "__main__":
    run(stream, the_same_as_plain)
