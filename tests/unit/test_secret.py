import logging

import pytest

from node.host.secret import LONGEST, SHORTEST, SecretUnusable, read_secret

SECRET = "correct horse battery staple"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


def test_none_is_none():
    assert read_secret(None, {}) is None


def test_from_a_file_without_the_line_s_end(file, caplog):
    assert read_secret(file, {}) == SECRET.encode()
    assert not caplog.records


def test_from_the_environment_which_loses_it():
    environment = {"PIPPIN_SECRET": f" {SECRET} ", "PATH": "/bin"}
    assert read_secret(None, environment) == SECRET.encode()
    assert environment == {"PATH": "/bin"}


def test_a_file_comes_before_the_environment(file):
    environment = {"PIPPIN_SECRET": "another secret of 16 bytes and more"}
    assert read_secret(file, environment) == SECRET.encode()
    assert not environment


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_who_else_can_read_it_is_told(file, mode, caplog):
    file.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert read_secret(file, {}) == SECRET.encode()
    assert f"chmod 600 {file}" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("text", ["", "  \n", "x" * (SHORTEST - 1)])
def test_too_short_is_refused_wherever_it_comes_from(file, text):
    file.write_text(text)
    for asked, environment in ((file, {}), (None, {"PIPPIN_SECRET": text})):
        with pytest.raises(SecretUnusable, match=r"at least 16 are needed.*openssl rand"):
            read_secret(asked, environment)


def test_some_other_file_is_refused(file):
    file.write_bytes(bytes(LONGEST + 1))
    with pytest.raises(SecretUnusable, match=f"more than {LONGEST:,} bytes"):
        read_secret(file, {})


def test_no_file_is_refused(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SecretUnusable, match="can't be read"):
            read_secret(path, {"PIPPIN_SECRET": SECRET})
