"""Options of `node` from the environment and from a file, beneath those of the command line."""

import tomllib
from pathlib import Path

import pytest

from node.options import Options, parse_options


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default configuration file of a user's home, which has none yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PIPPIN_CONFIG")
    monkeypatch.delenv("PIPPIN_DEVICE", raising=False)
    path = tmp_path / ".config" / "pippin" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def parsed(*argv: str) -> Options:
    return parse_options(argv)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        parsed(*argv)
    assert exit_.value.code == 2
    return capsys.readouterr().err


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, str]:
    """Lines of --print-config, by option."""
    with pytest.raises(SystemExit) as exit_:
        parsed(*argv, "--print-config")
    assert exit_.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.removeprefix("# ").partition(" =")[0]: " ".join(line.split()) for line in lines}


def test_flags_go_before_variables_and_these_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('cluster = "of-file"\napi-port = 1\nname = "of file"\n')
    monkeypatch.setenv("PIPPIN_API_PORT", "2")
    monkeypatch.setenv("PIPPIN_NAME", "of variable")
    options = parsed("--name", "of flag")
    assert (options.cluster, options.api_port, options.name) == ("of-file", 2, "of flag")


def test_values_of_the_file(file: Path) -> None:
    file.write_text(
        'model = ["a/b", "c"]\nmemory = "12GB"\nfail-after = 2.5\npeer = "mini.local:52416"\nno-mdns = true\n'
        'open-api = false\ndraft = ["c=d"]\nkv-bits = 8\nname = 7\ndata-dir = "~/x"\n'
    )
    options = parsed()
    assert options.models == ("a/b", "c")
    assert options.memory == 12 * 2**30
    assert options.fail_after == 2.5
    assert options.peers == (("mini.local", 52416),)
    assert (options.mdns, options.open_api) == (False, False)
    assert options.drafts == (("c", "d"),)
    assert (options.kv_bits, options.name) == (8, "7")
    assert options.data_dir == Path.home() / "x"


def test_values_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPPIN_MODEL", "a/b, c")
    monkeypatch.setenv("PIPPIN_NO_MDNS", "yes")
    monkeypatch.setenv("PIPPIN_BIND", "127.0.0.1")
    monkeypatch.setenv("PIPPIN_HOST", "mini-1.local:52415")  # what `cluster` asks
    monkeypatch.setenv("PIPPIN_CONTEXT", " ")
    monkeypatch.setenv("PIPPIN_PEER", " mini:1,, mini:2,")
    options = parsed()
    assert (options.models, options.mdns, options.host) == (("a/b", "c"), False, "127.0.0.1")
    assert options.context is None
    assert options.peers == (("mini", 1), ("mini", 2))


def test_a_repeatable_option_replaces_the_list_beneath_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('model = ["a", "b"]\npeer = ["mini:1"]\n')
    monkeypatch.setenv("PIPPIN_PEER", "mini:2,mini:3")
    assert parsed("--model", "c").models == ("c",)
    assert parsed().peers == (("mini", 2), ("mini", 3))


def test_a_variable_switches_off_what_the_file_switches_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("open-api = true\n")
    assert parsed().open_api
    monkeypatch.setenv("PIPPIN_OPEN_API", "off")
    assert not parsed().open_api


def test_only_the_value_that_counts_is_parsed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('api-port = 70000\nmodels-dir = "/no/such"\n')
    monkeypatch.setenv("PIPPIN_MODELS_DIR", "/")
    assert parsed("--api-port", "80").models_dirs == (Path("/"),)


def test_a_draft_of_the_file_is_for_a_model_of_the_command_line(file: Path) -> None:
    file.write_text('draft = "small"\n')
    assert parsed("--model", "big").drafts == (("big", "small"),)


def test_the_file_may_be_another(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("api-port = 1\n")
    for name, port in (("two", 2), ("three", 3)):
        (tmp_path / name).write_text(f"api-port = {port}\n")
    monkeypatch.setenv("PIPPIN_CONFIG", "~/two")
    assert parsed().api_port == 2
    assert parsed("--config", str(tmp_path / "three")).api_port == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("api_port = 1", "there is no option 'api_port'; the nearest is 'api-port'"),
        ("modle = 'a'", "there is no option 'modle'; the nearest is 'model'"),
        ("bogus = 'a'", "there is no option 'bogus'. See"),
        ("config = 'a'", "there is no option 'config'"),
        ("api-port = 70000", "api-port: '70000' is not a whole number from 0 to 65535"),
        ("api-port = true", "api-port: must be a text or a number"),
        ("api-port = [1]", "api-port: must be a text or a number"),
        ("model = [true]", "model: must be a text or a number, or a list of these"),
        ("[model]\nid = 'a'", "model: must be a text or a number, or a list of these"),
        ("open-api = 'yes'", "open-api: must be true or false"),
        ("kv-bits = 3", "kv-bits: invalid choice: '3'"),
        ("api-port = ", "at line 1"),
        ("model = 'a", "at end of document"),
    ],
)
def test_mistakes_in_the_file(file: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text + "\n")
    said = refused(capsys)
    assert f"{file}: " in said
    assert complaint in said


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("PIPPIN_API_PORT", "x", "PIPPIN_API_PORT: 'x' is not a whole number"),
        ("PIPPIN_OPEN_API", "perhaps", "PIPPIN_OPEN_API: 'perhaps' must be true or false"),
        ("PIPPIN_DRAFT", "a", "--draft ID needs --model"),
        ("PIPPIN_CONFIG", "/no/such", "the configuration file /no/such can't be read: No such file"),
        ("PIPPIN_CONFIG", "~no-such-user/x", "PIPPIN_CONFIG: there is no user no-such-user"),
    ],
)
def test_mistakes_in_variables(
    name: str, text: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, text)
    assert complaint in refused(capsys)


def test_options_that_exclude_each_other_may_come_from_anywhere(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('host = "127.0.0.1"\n')
    assert "not allowed with" in refused(capsys, "--interface", "lo")


def test_a_variable_that_is_nearly_one_of_an_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning only: in Kubernetes, a service called "pippin" gives each container variables of this kind."""
    monkeypatch.setenv("PIPPIN_MODELS", "a")
    monkeypatch.setenv("PIPPIN_PORT_80_TCP_ADDR", "10.0.0.1")
    assert parsed().models == ()
    assert capsys.readouterr().err == "node: PIPPIN_MODELS is not read; is PIPPIN_MODEL meant?\n"


def test_each_value_is_printed_with_its_source(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = file.with_name("keys")
    keys.write_text("sk-one\n")
    keys.chmod(0o600)
    file.write_text(f'memory = "12GB"\nfail-after = 2\nno-mdns = true\napi-key-file = "{keys}"\n')
    monkeypatch.setenv("PIPPIN_NO_MDNS", "off")
    lines = printed(capsys, "--model", 'a"b', "--model", "c", "--open-api", "--api-port", "80")
    assert lines["memory"] == f'memory = "12GB" # {file}: memory'
    assert lines["fail-after"] == f"fail-after = 2 # {file}: fail-after"
    assert lines["no-mdns"] == "no-mdns = false # PIPPIN_NO_MDNS"
    assert lines["model"] == r'model = ["a\"b", "c"] # --model'
    assert lines["open-api"] == "open-api = true # --open-api"
    assert lines["api-port"] == "api-port = 80 # --api-port"
    assert lines["context"] == "# context = # default"
    assert lines["max-queue"] == "max-queue = 256 # default"
    assert "sk-one" not in " ".join(lines.values())


def test_what_is_printed_is_a_file_with_the_same_values(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--model", "ä b", "--no-guesses", "--memory", "1.5GB", "--peer", "[fd00::5]:1", "--step-timeout", "7.5"]
    with pytest.raises(SystemExit, match="0"):
        parsed(*argv, "--print-config")
    text = capsys.readouterr().out
    assert {"model", "allow-sleep", "no-guesses", "peer"} <= set(tomllib.loads(text))
    file.write_text(text)
    assert parsed() == parsed(*argv)
