import os

import pytest

from node.cli.__main__ import main as cluster
from node.host.secret import MAX_BYTES, MIN_BITS, SecretUnusable, new_secret, read_secret, strength

SECRET = "correct horse battery staple"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


def test_none_is_none():
    assert read_secret(None, {}) is None


def test_from_a_file_without_the_line_s_end(file):
    assert read_secret(file, {}) == SECRET.encode()


def test_from_the_environment_which_loses_it():
    environment = {"PIPPIN_SECRET": f" {SECRET} ", "PATH": "/bin"}
    assert read_secret(None, environment) == SECRET.encode()
    assert environment == {"PATH": "/bin"}


def test_a_file_comes_before_the_environment(file):
    environment = {"PIPPIN_SECRET": "another secret of 16 bytes and more"}
    assert read_secret(file, environment) == SECRET.encode()
    assert not environment


@pytest.mark.parametrize(
    ("mode", "can"), [(0o644, "read"), (0o640, "read"), (0o604, "read"), (0o620, "change"), (0o606, "read and change")]
)
def test_a_file_that_others_can_read_or_change_is_refused(file, mode, can):
    file.chmod(mode)
    with pytest.raises(SecretUnusable, match=rf"can {can} {file}.*chmod 600 {file}.*cluster secret new") as error:
        read_secret(file, {})
    assert SECRET not in str(error.value)


@pytest.fixture
def service(monkeypatch):
    """Run as another user than the owner of files."""
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("mode", [0o640, 0o444, 0o644])
def test_a_file_that_a_service_manager_gives_is_accepted(file, mode):
    """As of Docker, Kubernetes and systemd: it is root's, which says who may read it."""
    file.chmod(mode)
    assert read_secret(file, {}) == SECRET.encode()


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("mode", [0o660, 0o666, 0o642])
def test_a_file_that_others_can_change_is_refused_whoever_has_it(file, mode):
    file.chmod(mode)
    with pytest.raises(SecretUnusable, match=f"can change {file}"):
        read_secret(file, {})


WEAK = [
    "",
    "  \n",
    "swordfish",
    "x" * 400,
    "ab" * 30,
    "correcthorse",
    "passwordpassword",
    "hunter2hunter2hunter2",
    "2026" * 9,
]


@pytest.mark.parametrize("text", WEAK)
def test_what_can_be_guessed_is_refused_wherever_it_comes_from(file, text):
    file.write_text(text)
    for asked, environment in ((file, {}), (None, {"PIPPIN_SECRET": text})):
        with pytest.raises(SecretUnusable, match=rf"{MIN_BITS} are needed.*cluster secret new") as error:
            read_secret(asked, environment)
        assert not text.strip() or text.strip() not in str(error.value)


@pytest.mark.parametrize("text", [SECRET, "Tr0ub4dor&3 and more", "x7#Kq9!vLm2$", "каждый охотник желает"])
def test_what_is_long_or_varied_enough_is_taken(file, text):
    file.write_text(text)
    assert read_secret(file, {}) == text.encode()


def test_a_new_secret_is_128_random_bits(capsys, file):
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(bytes.fromhex(secret)) for secret in made} == {16}
    assert all(strength(secret.encode()) > MIN_BITS for secret in made)
    assert cluster(["secret", "new"]) == 0
    file.write_text(capsys.readouterr().out)
    assert len(read_secret(file, {})) == 32


def test_some_other_file_is_refused(file):
    file.write_bytes(bytes(MAX_BYTES + 1))
    with pytest.raises(SecretUnusable, match=f"more than {MAX_BYTES:,} bytes"):
        read_secret(file, {})


def test_no_file_is_refused(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SecretUnusable, match="can't be read"):
            read_secret(path, {"PIPPIN_SECRET": SECRET})
