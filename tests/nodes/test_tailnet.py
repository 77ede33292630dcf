"""A node whose machine is in a tailnet: it answers by its own name there, and by no other."""

import http.client
import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Cluster

pytestmark = pytest.mark.slow

NAME = "mini-1.tail1234.ts.net"
SAID = f'{{"BackendState": "Running", "Self": {{"DNSName": "{NAME}."}}}}'


def test_only_the_name_of_this_machine_is_its_own(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "tailscale"
    program.write_text(f"#!/bin/sh\necho '{SAID}'\n")
    program.chmod(0o755)
    node = cluster.launch(environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).started()

    def asked_by(host: str, **headers: str) -> int:
        with closing(http.client.HTTPConnection(node.url.removeprefix("http://"))) as connection:
            connection.request("GET", "/v1/models", headers={"Host": host, **headers})
            with connection.getresponse() as response:
                return response.status

    assert asked_by(NAME) == 200
    assert asked_by(f"{NAME.upper()}:443", Origin=f"https://{NAME}") == 200  # a page behind `tailscale serve`
    for foreign in ("other.tail1234.ts.net", "mini-1.tail9.ts.net", f"{NAME}.evil.example", "evil.example"):
        assert asked_by(foreign) == 403, foreign
