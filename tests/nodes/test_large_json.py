"""Large JSON in the files of a stranger's model: a real node reads it, and meanwhile answers everybody else."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.model.file_names import DESCRIPTION
from node.model.safetensors_header import MAX_TENSORS_OF_FILE
from tests.conftest import GONE, running_cluster, until
from tests.nodes.test_bad_input import BUILTIN

pytestmark = pytest.mark.slow


def with_headers(directory: Path, files: int) -> list[bytes]:
    """A model of very many empty tensors, as many in each file as may be; returns its headers."""
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN / name, directory)
    entry = '"model.layers.{}.mlp.experts.{:06d}.up_proj.weight":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    headers = []
    for file in range(files):
        entries = ",".join(entry.format(file, number) for number in range(MAX_TENSORS_OF_FILE))
        headers.append(f"{{{entries}}}".encode())
        name = f"model-{file + 1:05d}-of-{files:05d}.safetensors"
        (directory / name).write_bytes(len(headers[-1]).to_bytes(8, "little") + headers[-1])
    return headers


def seconds_of(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_large_headers_delay_nobody(tmp_path: Path) -> None:
    headers = with_headers(tmp_path / "models" / "large", 7)
    assert sum(map(len, headers)) > 20e6
    with running_cluster(tmp_path) as cluster:
        holder, other = cluster.launch("--models-dir", str(tmp_path / "models")), cluster.launch()
        cluster.agreed(holder.started(), other.started())
        until(
            lambda: "large" in holder.get("/cluster/models").body.decode(), "the model is found"
        )  # what reads no file
        with ThreadPoolExecutor(1) as thread:
            show = thread.submit(holder.post, "/api/show", {"model": "large"})
            answers = 0
            while not show.done():
                assert holder.get("/health").status == 200
                answers += 1
            assert show.result().status == 200
        assert answers > 2 * len(headers), "whoever waits for each file is answered once a file"
        alone = seconds_of(lambda: [json.loads(header) for header in headers])
        shows = [seconds_of(lambda: holder.post("/api/show", {"model": "large"})) for _ in range(4)]
        assert min(shows) < alone, "what was counted once is kept"
        assert other.state_of(holder) not in ("", *GONE)


def test_a_bomb_in_a_folder_is_dropped_once(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "bomb"
    shutil.copytree(BUILTIN, folder)
    entries = b",".join(b'"model.layers.0.%08d":["U8",0]' % number for number in range(4_000_000))
    bomb = folder / DESCRIPTION
    bomb.write_bytes(b'{"model.safetensors":{"size":0,"tensors":{%s}}}' % entries)
    assert bomb.stat().st_size > 120_000_000
    with running_cluster(tmp_path) as cluster:
        node = cluster.launch("--models-dir", str(tmp_path / "models")).started()
        until(lambda: "bomb" in node.get("/v1/models").body.decode(), "the model is found without it")
        assert not bomb.exists()
        assert node.written.count("is deleted") == 1
        node.end()
        again = cluster.launch("--models-dir", str(tmp_path / "models"), name="again").started()
        assert DESCRIPTION not in again.written
