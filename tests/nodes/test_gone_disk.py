"""A disk with models that is unplugged while its model is served, and plugged in again."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT, Cluster, until

pytestmark = pytest.mark.slow


def test_a_model_stays_loaded_without_its_disk_and_loads_again_with_it(cluster: Cluster, tmp_path: Path) -> None:
    disk, unplugged = tmp_path / "disk", tmp_path / "unplugged"
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, disk / "models" / "on-disk")
    node = cluster.launch("--models-dir", str(disk / "models")).started()

    def asked() -> str:
        done = node.command("run", "--temperature", "0", "on-disk", "Hello")
        return done.stdout + done.stderr

    def is_held() -> bool:
        held = {model["id"]: model["nodes"] for model in node.get("/cluster/models").json["models"]}
        return bool(held.get("on-disk"))

    said = asked()
    assert is_held()
    assert node.command("load", "on-disk").returncode == 0
    disk.rename(unplugged)
    until(lambda: not is_held(), "the node sees that the disk is gone")
    assert asked() == said, "the weights are in memory"
    until(lambda: node.command("unload", "on-disk").returncode == 0, "its request has ended for the head, too")
    assert "There is no model 'on-disk' here" in node.command("load", "on-disk").stderr
    unplugged.rename(disk)
    until(is_held, "it is back")
    assert asked() == said
