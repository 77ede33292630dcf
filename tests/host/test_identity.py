import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.host import identity, machine_id
from node.host.identity import DataDirectoryUnusable, Identity, open_data_directory
from node.host.node_key import id_of, public_key_of


def open_and_close(path):
    with open_data_directory(path):
        pass


def test_each_start_is_an_incarnation_of_one_id(tmp_path):
    with open_data_directory(tmp_path / "new" / "dir") as data:
        first = data.identity
    with open_data_directory(tmp_path / "new" / "dir") as data:
        second = data.identity
    assert (first.incarnation, first.term) == (1, 0)
    assert (second.id, second.incarnation, second.term) == (first.id, 2, 0)
    assert len(first.id) == 53


def test_the_key_is_the_id_and_nobody_else_s_to_read(tmp_path):
    with open_data_directory(tmp_path) as data:
        assert data.identity.id == id_of(data.key.public_key())
        assert public_key_of(data.identity.id) == data.key.public_key()
        for name in ("node-key.pem", "node.json"):
            assert (tmp_path / name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o666])
def test_a_key_that_a_copy_opened_to_others_is_closed_again(tmp_path, caplog, mode):
    open_and_close(tmp_path)
    key = tmp_path / "node-key.pem"
    key.chmod(mode)
    open_and_close(tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600
    assert [f"{key} no longer, but until now" in each for each in caplog.messages] == [True]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_volume_that_keeps_no_permissions_is_used_with_a_warning(tmp_path, monkeypatch, caplog, refuses):
    """As exFAT and SMB: the first start made the key, and each later one finds it open to all."""
    with open_data_directory(tmp_path) as data:
        key = tmp_path / "node-key.pem"
    key.chmod(0o777)

    def keep(descriptor, mode):
        if refuses:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", keep)
    with open_data_directory(tmp_path) as again:
        assert again.identity.id == data.identity.id
    told = f"Other users of this machine can read and change {key}, as this volume keeps no permissions"
    assert caplog.messages == [told]


def test_a_directory_of_before_keys_gets_a_new_id(tmp_path):
    (tmp_path / "node.json").write_text('{"id": "0123456789abcdef", "incarnation": 7, "term": 3}')
    with open_data_directory(tmp_path) as data:
        assert data.identity == Identity(id_of(data.key.public_key()), 8, 3)


def start(path, machine):
    with open_data_directory(path, machine=machine) as data:
        assert id_of(data.key.public_key()) == data.identity.id
        return data.identity


def test_a_copy_on_another_machine_is_another_node(tmp_path, caplog):
    with open_data_directory(tmp_path / "first", machine="here") as data:
        data.save_term(3)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = start(tmp_path / "copy", "there")
    assert copy.id != data.identity.id
    assert copy.term == 3, "a higher term than the cluster's does no harm, a lower one may"
    assert [copy.id in each and "was copied from another machine" in each for each in caplog.messages] == [True]
    assert start(tmp_path / "copy", "there").id == copy.id
    assert start(tmp_path / "first", "here").id == data.identity.id


def test_on_a_mac_it_is_the_hardware_s(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    shown = '+-o J314sAP  <class IOPlatformExpertDevice>\n    {\n      "IOPlatformUUID" = "4A2C9F1E-0B6D-5E7F-8A90-1234567890AB"\n    }\n'
    monkeypatch.setattr(machine_id, "output_of", lambda *command: shown if command[0] == "/usr/sbin/ioreg" else "")
    assert machine_id.machine_id() == "4A2C9F1E-0B6D-5E7F-8A90-1234567890AB"
    monkeypatch.setattr(machine_id, "output_of", lambda *_: "")
    assert machine_id.machine_id() == ""


def test_on_linux_it_is_systemd_s_unless_in_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for name in machine_id._CONTAINER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    sign = tmp_path / ".dockerenv"
    monkeypatch.setattr(machine_id, "_CONTAINER_SIGNS", (sign,))
    monkeypatch.setattr(machine_id, "_MACHINE_ID", tmp_path / "machine-id")
    assert machine_id.machine_id() == ""
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert machine_id.machine_id() == "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("container", "podman")
    assert machine_id.machine_id() == ""
    monkeypatch.delenv("container")
    sign.touch()
    assert machine_id.machine_id() == ""


@pytest.mark.parametrize("machines", [("", "here"), ("here", "", "here"), ("", "")])
def test_a_machine_that_tells_no_id_keeps_the_key(tmp_path, machines):
    """As a container; or as a Mac on which the question failed once."""
    assert len({start(tmp_path, machine).id for machine in machines}) == 1


def test_the_machine_is_not_forgotten_while_it_tells_no_id(tmp_path):
    ids = [start(tmp_path, machine).id for machine in ("here", "", "there")]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff" * 99])
def test_a_damaged_key_is_an_error_that_says_what_to_do(tmp_path, pem):
    (tmp_path / "node-key.pem").write_bytes(pem)
    (tmp_path / "node-key.pem").chmod(0o600)
    with pytest.raises(DataDirectoryUnusable, match=r"node-key\.pem is damaged"):
        open_and_close(tmp_path)
    (tmp_path / "node-key.pem").unlink()
    open_and_close(tmp_path)


@pytest.mark.slow
@given(st.text() | st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=53, max_size=53))
def test_what_is_no_id_is_no_key(text):
    try:
        found = public_key_of(text)
    except ValueError:
        return
    assert id_of(found) == text


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
            open_and_close(tmp_path)
        assert json.loads((tmp_path / "node.json").read_text())["incarnation"] == 1
    open_and_close(tmp_path)


def test_a_killed_node_leaves_no_lock(tmp_path):
    code = (
        "import sys; from pathlib import Path; from node.host.identity import open_data_directory as o\n"
        "opened = o(Path(sys.argv[1])); data = opened.__enter__(); data.save_term(5); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(DataDirectoryUnusable, match=f"process {process.pid}"):
            open_and_close(tmp_path)
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


@pytest.mark.parametrize("able", [True, False])
def test_on_a_mac_the_drive_writes_too(tmp_path, monkeypatch, able):
    """F_FULLFSYNC is macOS's alone, and disks of a network do not know it. Of a term, the file and its name are synced."""
    full, plain = [], []

    def control(descriptor, command):
        assert command == 51
        full.append(os.fstat(descriptor).st_ino)
        if not able:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    with open_data_directory(tmp_path) as data:
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", control)
        monkeypatch.setattr(os, "fsync", lambda descriptor: plain.append(os.fstat(descriptor).st_ino))
        data.save_term(7)
    assert full == [(tmp_path / "node.json").stat().st_ino, tmp_path.stat().st_ino]
    assert plain == ([] if able else full)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"id": "x"}',
        '{"id": "x", "incarnation": "1", "term": 0}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path, text):
    (tmp_path / "node.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataDirectoryUnusable, match="is damaged") as caught:
        open_and_close(tmp_path)
    assert "Delete it" in caught.value.hint
    (tmp_path / "node.json").unlink()
    open_and_close(tmp_path)  # the failed call released its lock


@pytest.mark.parametrize("name", ["node-key.pem", "node.json"])
def test_whichever_bit_flips_a_node_starts_or_says_what_is_damaged(tmp_path, name, monkeypatch):
    monkeypatch.setattr(identity, "_sync", lambda _: None)  # a thousand times
    open_and_close(tmp_path)
    whole = {each: (tmp_path / each).read_bytes() for each in ("node-key.pem", "node.json")}
    usable = 0
    for at in range(len(whole[name])):
        for bit in (at % 8, (at + 3) % 8, (at + 6) % 8):
            broken = bytearray(whole[name])
            broken[at] ^= 1 << bit
            for each, data in (whole | {name: bytes(broken)}).items():
                (tmp_path / each).write_bytes(data)
            with suppress(DataDirectoryUnusable):
                open_and_close(tmp_path)
                usable += 1
    assert usable < len(whole[name]) * 2


@pytest.mark.parametrize("count", [-1, (1 << 53) - 1, 1 << 52, 1 << 64])
@pytest.mark.parametrize("what", ["incarnation", "term"])
def test_counts_beyond_all_reason_begin_anew(tmp_path, what, count):
    (tmp_path / "node.json").write_text(json.dumps({"id": "x", "incarnation": 8, "term": 9, what: count}))
    with open_data_directory(tmp_path) as data:
        found = data.identity
    assert (found.incarnation, found.term) == ((1, 9) if what == "incarnation" else (9, 0))


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryUnusable, match="can't be used: Not a directory") as caught:
        open_and_close(tmp_path / "file" / "data")
    assert "--data-dir" in caught.value.hint


@pytest.mark.xfail(strict=True, reason="gap: node-json")
def test_a_bit_that_flips_in_a_number_of_node_json_is_noticed(tmp_path):
    with open_data_directory(tmp_path) as data:
        data.save_term(5)
    file = tmp_path / "node.json"
    file.write_text(file.read_text().replace('"term": 5', '"term": 4'))
    with pytest.raises(DataDirectoryUnusable):
        open_and_close(tmp_path)
