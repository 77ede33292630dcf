"""The API by TLS: real nodes, the `cluster` command, and the `openai` package."""

import ssl
from pathlib import Path

import httpx
import openai
import pytest

from tests.conftest import MODEL, Cluster, Node, until
from tests.host.certificates import write

pytestmark = pytest.mark.slow


def asked(node: Node, fingerprint: str, *words: str, scheme: str = "https") -> tuple[int, str]:
    """Runs `cluster`. Returns its exit code, and what it said."""
    port = node.url.rpartition(":")[2]
    options = ("--tls-fingerprint", fingerprint) if fingerprint else ()
    found = node.command(*words[:1], "--api", f"{scheme}://127.0.0.1:{port}", *options, *words[1:])
    return found.returncode, found.stdout + found.stderr


def test_keys_do_not_travel_in_the_clear(cluster: Cluster, tmp_path: Path) -> None:
    chain, key, keys = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "keys"
    fingerprint = write(chain, key)
    keys.touch(mode=0o600)
    keys.write_text("sk-1\n")
    plain = cluster.launch("--model", MODEL).started()
    options = ("--tls-cert", str(chain), "--tls-key", str(key), "--api-key-file", str(keys))
    node = cluster.launch("--model", MODEL, *options).started()
    until(lambda: fingerprint in node.written, "the log shows the fingerprint")
    until(lambda: len(plain.status()["nodes"]) == 2, "they know each other")
    until(lambda: plain.status()["state"] == "ready", "the model is loaded")
    apis = {each["api"].partition("://")[0] for each in plain.status()["nodes"]}
    assert apis == {"http", "https"}

    code, said = asked(node, fingerprint, "status", "--api-key-file", str(keys))
    assert (code, MODEL in said) == (0, True), said
    code, said = asked(
        node, ":".join([fingerprint[:2].upper(), fingerprint[2:]]), "run", "--api-key-file", str(keys), MODEL, "Hi"
    )
    assert code == 0, said
    code, said = asked(node, "0" * 64, "status")
    assert (code, f"has the SHA-256 {fingerprint}" in said) == (1, True), said
    code, said = asked(node, "", "status")
    assert (code, "--tls-fingerprint" in said) == (1, True), said
    for fingerprint_given in ("0" * 64, ""):
        code, said = asked(node, fingerprint_given, "wait")  # at once: the default is ten minutes
        assert (code, "The certificate of" in said) == (1, True), said
    code, said = asked(node, "", "status", scheme="http")
    assert (code, "If it has a certificate, ask https://" in said) == (1, True), said
    code, said = asked(plain, "", "status")
    assert (code, "has no TLS" in said) == (1, True), said

    url = node.url.replace("http://", "https://")
    trusting = httpx.Client(verify=ssl.create_default_context(cafile=str(chain)))
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0, http_client=trusting) as client:
        messages = [{"role": "user", "content": "Hello"}]
        stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)  # type: ignore[call-overload]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    renewed = write(chain, key)
    until(lambda: f"was renewed: its SHA-256 is {renewed}" in node.written, "the renewed certificate is used")
    assert asked(node, renewed, "status", "--api-key-file", str(keys))[0] == 0
    assert asked(node, fingerprint, "status", "--api-key-file", str(keys))[0] == 1


def test_a_node_does_not_start_with_files_that_it_cannot_use(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.launch("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    assert node.wait() != 0
    assert "cert.pem can't be read (No such file or directory)" in node.written
