import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.host import identity
from node.host.identity import DataDirectoryUnusable, open_data_directory


def test_each_start_is_an_incarnation_of_one_id(tmp_path):
    with open_data_directory(tmp_path / "new" / "dir") as data:
        first = data.identity
    with open_data_directory(tmp_path / "new" / "dir") as data:
        second = data.identity
    assert (first.incarnation, first.term) == (1, 0)
    assert (second.id, second.incarnation, second.term) == (first.id, 2, 0)
    assert len(first.id) == 16


def test_nodes_have_different_ids(tmp_path):
    with open_data_directory(tmp_path / "a") as a, open_data_directory(tmp_path / "b") as b:
        assert a.identity.id != b.identity.id


def test_the_term_only_rises(tmp_path):
    with open_data_directory(tmp_path) as data:
        data.save_term(7)
        data.save_term(3)
        assert data.identity.term == 7
    with open_data_directory(tmp_path) as data:
        assert (data.identity.term, data.identity.incarnation) == (7, 2)


def test_one_directory_serves_one_node(tmp_path):
    with open_data_directory(tmp_path):
        with pytest.raises(DataDirectoryUnusable, match=rf"Another node uses .* \(process {os.getpid()}\)"):
            open_data_directory(tmp_path)
        assert json.loads((tmp_path / "node.json").read_text())["incarnation"] == 1
    open_data_directory(tmp_path).close()


def test_a_killed_node_leaves_no_lock(tmp_path):
    code = (
        "import sys; from pathlib import Path; from node.host.identity import open_data_directory as o\n"
        "data = o(Path(sys.argv[1])); data.save_term(5); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(DataDirectoryUnusable, match=f"process {process.pid}"):
            open_data_directory(tmp_path)
        process.kill()
    with open_data_directory(tmp_path) as data:
        assert (data.identity.incarnation, data.identity.term) == (2, 5)


def test_nodes_of_one_machine_share_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "DEFAULT_DIRECTORY", tmp_path / "pippin")
    with open_data_directory() as first, open_data_directory() as second, open_data_directory() as third:
        assert [data.path.name for data in (first, second, third)] == ["pippin", "node-2", "node-3"]
        ids = [data.identity.id for data in (first, second, third)]
    assert len(set(ids)) == 3
    with open_data_directory() as first, open_data_directory() as second:
        assert [first.identity.id, second.identity.id] == ids[:2]


def test_a_crash_while_saving_loses_nothing(tmp_path, monkeypatch):
    with open_data_directory(tmp_path) as data:
        data.save_term(4)

        def crash(self, target):
            raise OSError("power cut")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", crash)
            with pytest.raises(OSError, match="power cut"):
                data.save_term(5)
        assert data.identity.term == 4
    (tmp_path / "node.json.new").write_text('{"id": "ha')
    with open_data_directory(tmp_path) as data:
        assert (data.identity.term, data.identity.incarnation) == (4, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"id": "x"}',
        '{"id": 5, "incarnation": 1, "term": 0}',
        '{"id": "x", "incarnation": "1", "term": 0}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path, text):
    (tmp_path / "node.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataDirectoryUnusable, match="is damaged") as caught:
        open_data_directory(tmp_path)
    assert "Delete it" in caught.value.hint
    (tmp_path / "node.json").unlink()
    open_data_directory(tmp_path).close()  # the error left no lock behind


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryUnusable, match="can't be used: Not a directory") as caught:
        open_data_directory(tmp_path / "file" / "data")
    assert "--data-dir" in caught.value.hint
