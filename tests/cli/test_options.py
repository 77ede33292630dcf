from pathlib import Path

import pytest

from node.core.limits import MAX_NAME_CHARS
from node.options import Options, parse_options

ORIGINS = ("https://chat.example", "app://obsidian.md")


def parsed(*argv):
    return parse_options(argv)


def test_defaults(monkeypatch):
    monkeypatch.setattr("node.options.machine_name", lambda: "mini-1")
    monkeypatch.delenv("PIPPIN_DEVICE", raising=False)
    assert parsed() == Options(name="mini-1")


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--model", "a/b", "--model", "c", "--model", "a/b"], "models", ("a/b", "c")),
        (["--allow-model", "mlx-community/*", "--allow-model", "qwen3"], "allow_models", ("mlx-community/*", "qwen3")),
        (["--models-dir", "/tmp"], "models_dirs", (Path("/tmp"),)),
        (["--api-port", "0"], "api_port", 0),
        (["--grpc-port", "52416"], "grpc_port", 52416),
        (["--ollama-port", "11434"], "ollama_port", 11434),
        (["--ollama-port", "0"], "ollama_port", 0),
        (["--host", "127.0.0.1"], "host", "127.0.0.1"),
        (["--host", "localhost"], "host", "127.0.0.1"),
        (["--host", "0.0.0.0"], "host", ""),
        (["--host", "::"], "host", ""),
        (["--name", " Anna-Ö Mac 2 "], "name", "Anna-Ö Mac 2"),
        (["--cluster", "Lab-2"], "cluster", "lab-2"),
        (["--data-dir", "~/x"], "data_dir", Path.home() / "x"),
        (["--secret-file", "~/x"], "secret_file", Path.home() / "x"),
        (["--memory", "1.5GiB"], "memory", 3 * 2**29),
        (["--stages", "2"], "stages", 2),
        (["--peer", "10.0.0.2:1", "--peer", "mini.local:65535"], "peers", (("10.0.0.2", 1), ("mini.local", 65535))),
        (["--peer", "[FD00::5]:52416"], "peers", (("fd00::5", 52416),)),
        (["--peer", "[FE80::5%en5]:52416"], "peers", (("fe80::5%en5", 52416),)),
        (["--no-mdns"], "mdns", False),
        (["--context", "4096"], "context", 4096),
        (["--max-sessions", "8"], "max_sessions", 8),
        (["--keep-alive", "30m"], "keep_alive", 1800.0),
        (["--keep-alive", "2H"], "keep_alive", 7200.0),
        (["--kv-bits", "4"], "kv_bits", 4),
        (["--no-guesses"], "guesses", False),
        (["--model", "a", "--model", "b", "--draft", "c"], "drafts", (("a", "c"), ("b", "c"))),
        (["--draft", "org/a=org/c", "--draft", "b = d"], "drafts", (("org/a", "org/c"), ("b", "d"))),
        (["--sampling", "a=temperature=0.6, top_k=20"], "presets", (("a", (("temperature", 0.6), ("top_k", 20))),)),
        (["--alias", "gpt-4o=org/a", "--alias", "b=qwen3:8b"], "aliases", (("gpt-4o", "org/a"), ("b", "qwen3:8b"))),
        (["--max-body", "1MB"], "max_body", 2**20),
        (["--cors-origin", "HTTPS://chat.example/", "--cors-origin", "app://obsidian.md"], "cors_origins", ORIGINS),
        (["--cors-origin", "http://localhost:3000"], "cors_origins", ("http://localhost:3000",)),
        (["--allow-host", "LLM.example", "--allow-host", "llm.example"], "allow_hosts", ("llm.example",)),
        (["--open-api"], "open_api", True),
        (["--fail-after", "1.25"], "fail_after", 1.25),
        (["--step-timeout", "120"], "step_timeout", 120.0),
        (["--allow-sleep"], "allow_sleep", True),
        (["--wire"], "wire", True),
        (["--unproven"], "unproven", True),
        (["--log-level", "debug"], "log_level", "debug"),
        (["--log-file", "~/x"], "log_file", Path.home() / "x"),
    ],
)
def test_values(argv, field, value):
    assert getattr(parsed(*argv), field) == value


@pytest.mark.parametrize("device", ["", "cpu", "gpu"])
def test_device(device, monkeypatch):
    monkeypatch.setenv("PIPPIN_DEVICE", device)
    assert parsed().device == device
    assert parsed("--device", "cpu").device == "cpu"


def test_no_such_device(monkeypatch, capsys):
    monkeypatch.setenv("PIPPIN_DEVICE", "metal")
    with pytest.raises(SystemExit, match="2"):
        parsed()
    assert "PIPPIN_DEVICE: invalid choice: 'metal'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--name", "--model"])
def test_names_that_other_nodes_would_refuse_are_refused_at_once(option, capsys):
    assert parsed(option, "x" * MAX_NAME_CHARS)
    with pytest.raises(SystemExit):
        parsed(option, "x" * (MAX_NAME_CHARS + 1))
    assert f"{option}: has 513 characters; the maximum is 512" in capsys.readouterr().err


def test_relative_directories_become_absolute(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parsed("--models-dir", "models", "--data-dir", "data").models_dirs == (tmp_path / "models",)


def test_api_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the kitchen\nsk-one\n\n  sk-two  \nsk-one\n")
    file.chmod(0o600)
    options = parsed("--api-key-file", str(file))
    assert options.api_keys == ("sk-one", "sk-two")
    assert "sk-" not in repr(options)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "has no key"), ("# sk-one\n", "has no key"), ("sk-one\nsk two\n", "line 2"), ("s\u00e9same\n", "line 1")],
)
def test_a_file_without_usable_keys(text, complaint, tmp_path, capsys):
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(SystemExit):
        parsed("--api-key-file", str(file))
    said = capsys.readouterr().err
    assert complaint in said
    assert not [key for key in ("sk-one", "sk two", "s\u00e9same") if key in said]


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_a_key_file_that_others_can_read_or_change(tmp_path, capsys, mode):
    file = tmp_path / "keys"
    file.write_text("sk-one\n")
    file.chmod(mode)
    with pytest.raises(SystemExit):
        parsed("--api-key-file", str(file))
    said = capsys.readouterr().err
    assert f"chmod 600 {file}" in said
    assert "sk-one" not in said


def test_a_key_file_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parsed("--api-key-file", str(tmp_path / "keys"))
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("origin", ["chat.example", "https://", "https://chat.example/path", "https://me@x", ""])
def test_no_origins(origin, capsys):
    with pytest.raises(SystemExit):
        parsed("--cors-origin", origin)
    assert "write it like https://chat.example" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["llm.example:80", "https://llm.example", "*", "a b", ""])
def test_no_host_names(name, capsys):
    with pytest.raises(SystemExit):
        parsed("--allow-host", name)
    assert "write it like llm.example" in capsys.readouterr().err


def test_interface(monkeypatch):
    monkeypatch.setattr("node.option_values.interface_names", lambda: ("en0", "en5"))
    assert parsed("--interface", "en5").interface == "en5"
    with pytest.raises(SystemExit):
        parsed("--interface", "en9")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--model", ""], "must not be empty"),
        (["--models-dir", "/no/such"], "there is no directory /no/such"),
        (["--data-dir", "~nobody-here/x"], "there is no user nobody-here"),
        (["--api-port", "70000"], "'70000' is not a whole number from 0 to 65535"),
        (["--ollama-port", "70000"], "'70000' is not a whole number from 0 to 65535"),
        (["--grpc-port", "x"], "'x' is not a whole number"),
        (["--host", "mini"], "'mini' is not an IP address of this machine"),
        (["--host", "198.51.100.7"], "this machine has no address 198.51.100.7"),
        (["--name", "a\x1bb"], "control characters"),
        *((["--name", f"a{char}b"], "must be letters, digits, blanks and") for char in "$`\"'\\|&;<>(){}[]*?!#~=,%^"),
        (["--name=-rf"], "must be letters, digits, blanks and"),
        (["--cluster", "a b"], "'a b' must be up to 63 letters"),
        (["--cluster", "a-"], "must be up to 63 letters"),
        (["--cluster", "a" * 64], "must be up to 63 letters"),
        (["--memory", "lots"], "Write it like 64MB, 4GB or 1.5GiB"),
        (["--memory", "0"], "write it like 12GB"),
        (["--stages", "0"], "'0' is not a whole number from 1 to 1024"),
        (["--context", "4k"], "'4k' is not a whole number"),
        (["--max-sessions", "-1"], "not a whole number"),
        (["--kv-bits", "3"], "invalid choice: '3'"),
        (["--peer", "mini"], "'mini' must be HOST:PORT"),
        (["--peer", "mini:0"], "must be HOST:PORT"),
        (["--peer", "fd00::5:52416"], "must be HOST:PORT"),
        (["--peer", "[fd00::g]:1"], "must be HOST:PORT"),
        (["--peer", "[fe80::5]:1"], "lacks this machine's interface; write it like [fe80::5%en5]:1"),
        (["--peer", "[fe80::5%]:1"], "must be HOST:PORT"),
        (["--peer", "mini%en5:1"], "must be HOST:PORT"),
        (["--peer", "[1::2::3]:1"], "is not an IPv6 address"),
        (["--peer", "http://mini:1"], "must be HOST:PORT"),
        (["--fail-after", "0.1"], "'0.1' is not a number of seconds from 1 to 60"),
        (["--fail-after", "1e1"], "'1e1' is not a number of seconds"),
        (["--step-timeout", "nan"], "'nan' is not a number of seconds"),
        (["--log-level", "loud"], "invalid choice: 'loud' (choose from debug, info, warning, error)"),
        (["--log-level", "debgu"], "invalid choice: 'debgu' (did you mean debug?)"),
        (["--host", "127.0.0.1", "--interface", "lo"], "not allowed with"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key need each other"),
        (["Qwen3"], "unknown argument: Qwen3 (a model is named with --model ID)"),
        (["--mod", "x"], "unknown argument: --mod"),
        (["--model", "a", "--check"], "--check comes first"),
        (["--model", "--context", "4096"], "--model: expected one argument"),
        (["--port=80"], "unknown argument: --port (did you mean --api-port?)"),
        (["--open-api=yes"], "Option '--open-api' does not take a value"),
    ],
)
def test_mistakes(argv, text, capsys):
    with pytest.raises(SystemExit) as exit_:
        parsed(*argv)
    assert exit_.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--port", "--api-port"),
        ("--modle", "--model"),
        ("--ctx-size", "--context"),
        ("--bind", "--host"),
        ("-c", "--context"),
        ("--verbose", "--log-level debug"),
    ],
)
def test_near_misses(argument, meant, capsys):
    with pytest.raises(SystemExit) as exit_:
        parsed(argument, "8080")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"node: unknown argument: {argument} (did you mean {meant}?). See node --help\n"


@pytest.mark.parametrize("argument", ["--xyz", "--bogus", "--foo"])
def test_what_resembles_nothing(argument, capsys):
    with pytest.raises(SystemExit):
        parsed(argument)
    assert f"unknown argument: {argument} (a model is named with --model ID)." in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_says_which_node_this_is(flag, capsys):
    with pytest.raises(SystemExit) as exit_:
        parsed(flag)
    assert exit_.value.code == 0
    assert capsys.readouterr().out == "pippin 0.1.0 (a node of a cluster; not Node.js)\n"


def test_a_model_may_be_named_like_a_script():
    assert parsed("--model", "org/three.js").models == ("org/three.js",)


def test_a_folder_is_a_model_of_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "qwen3-8b"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (str(folder), "./qwen3-8b/", "~/qwen3-8b"):
        options = parsed("--model", text, "--models-dir", "/tmp", "--model", "other")
        assert options.models == ("qwen3-8b", "other")
        assert options.models_dirs == (Path("/tmp"), folder.resolve())


def test_a_model_for_llama_cpp_is_refused_at_once(capsys):
    with pytest.raises(SystemExit, match="2"):
        parsed("--model", "qwen3:8b-q4_K_M")
    assert "Write mlx-community/Qwen3-8B-4bit." in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "what"), [("./none", "is no directory"), ("./empty", "has no config.json")])
def test_a_folder_that_is_no_model(folder, what, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        parsed("--model", folder)
    assert what in capsys.readouterr().err
