"""This machine's name in its tailnet, from a program that answers as Tailscale's does."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from node.host.tailnet import tailnet_name

RUNNING = {"BackendState": "Running", "Self": {"HostName": "Mini-1", "DNSName": "Mini-1.tail1234.ts.net."}}


def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int = 0) -> None:
    program = tmp_path / "tailscale"
    program.write_text(
        f"#!/bin/sh\ntest \"$1 $2\" = 'status --json' || exit 9\ncat <<'END'\n{answer}\nEND\nexit {code}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_it_is_the_one_that_tailscale_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(tmp_path, monkeypatch, json.dumps(RUNNING))
    assert tailnet_name() == "mini-1.tail1234.ts.net"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("failed to connect to local Tailscale service", 1),
        ({**RUNNING, "BackendState": "Stopped"}, 0),
        ({**RUNNING, "Self": None}, 0),
        ({**RUNNING, "Self": {"DNSName": ["mini-1"]}}, 0),
        ({**RUNNING, "Self": {"DNSName": ""}}, 0),
        ([], 0),
        ("{", 0),
    ],
)
def test_without_one_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, code: int) -> None:
    says(tmp_path, monkeypatch, answer if isinstance(answer, str) else json.dumps(answer), code)
    assert tailnet_name() == ""


def test_a_machine_without_tailscale_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert tailnet_name() == ""
