"""What only a Mac can show."""

import os
import shutil
import subprocess
import sys

import pytest

from node.host.chip import chip_name
from node.host.interfaces import hardware_kinds
from tests.conftest import Cluster, until

pytestmark = pytest.mark.skipif(sys.platform != "darwin", reason="needs a Mac")


def test_facts_of_this_mac() -> None:
    assert chip_name().startswith("Apple ")
    assert {"ethernet", "wi-fi"} & set(hardware_kinds().values())


@pytest.mark.skipif(not shutil.which("dns-sd"), reason="needs the command dns-sd")
@pytest.mark.skipif(
    bool(os.environ.get("GITHUB_ACTIONS")) and os.getuid() != 0,
    reason="a hosted Mac's user may not use the local network: run it as root",
)
def test_the_systems_own_mdns_sees_a_node(cluster: Cluster) -> None:
    """Both listen at port 5353."""
    node = cluster.launch(host="").started()
    node_id = node.status()["nodes"][0]["id"]
    log = cluster.directory / "dns-sd.log"
    with log.open("wb") as file, subprocess.Popen(["dns-sd", "-B", "_pippin._tcp", "local."], stdout=file) as browser:
        try:
            until(lambda: node_id in log.read_text(), "dns-sd lists the node")
        finally:
            browser.terminate()


def test_a_running_node_keeps_the_mac_awake(cluster: Cluster) -> None:
    node = cluster.launch().started()
    asked = ["pmset", "-g", "assertions"]
    caffeinate = f"caffeinate -is -w {node.process.pid}"
    processes = ["ps", "-axo", "command"]
    until(lambda: caffeinate in subprocess.check_output(processes, text=True), "caffeinate runs")
    until(lambda: "caffeinate" in subprocess.check_output(asked, text=True), "the system knows of it")
    assert "multi-threaded" not in node.written, "the server of sandboxes forks beside a thread of macOS's"
    node.end()
    until(lambda: caffeinate not in subprocess.check_output(processes, text=True), "caffeinate has ended")
