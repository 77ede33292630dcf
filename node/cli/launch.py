"""`cluster launch`: starts a coding agent of others, which then uses a model of this cluster.

A program learns of the cluster by its environment and its arguments, so no settings of the user's are changed. Keys are
only in the environment, as all users see arguments in `ps`.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from node.cli.answers import default_model
from node.cli.client import Api, RequestRefused, StatusFailed
from node.cli.terminal import complain, printable
from node.cli.wait import model_id, unknown
from node.core.errors import ModelNotFound, PippinError

FOLDER = Path("~/.pippin/launch")
"""Of our files for programs that read a setting only from a file."""


class ProgramMissing(PippinError):
    """The program that `cluster launch` is to start is not installed, or not wholly."""

    code = "program_missing"


class Model(NamedTuple):
    """What a program is told. `context`: in tokens; 0: unknown."""

    api: Api
    id: str
    context: int

    @property
    def key(self) -> str:
        return self.api.key or "any"  # programs insist on one


Start = tuple[dict[str, str], list[str]]
"""Environment and arguments."""


class Program(NamedTuple):
    """`install`: the command that does so. `prompt`: tokens of its first request, about."""

    install: str
    prompt: int
    start: Callable[[Model], Start]


def _claude(model: Model) -> Start:
    others = ["ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_SUBAGENT_MODEL"]
    others += [f"CLAUDE_CODE_USE_{name}" for name in ("BEDROCK", "FOUNDRY", "VERTEX")]
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("HAIKU", "SONNET", "OPUS")))
    settings = {"ANTHROPIC_BASE_URL": str(model.api), "ANTHROPIC_AUTH_TOKEN": model.key}
    settings |= dict.fromkeys(models, model.id) | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    if model.context:
        settings["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(model.context)
    settings |= dict.fromkeys(others, "")  # what is for Anthropic's servers is not sent to a node
    shown = {name: value for name, value in settings.items() if value != model.api.key or not value}
    return settings, ["--settings", json.dumps({"env": shown})]  # an `env` in the user's settings would win


def _codex(model: Model) -> Start:
    provider = {"name": "Pippin", "base_url": f"{model.api}/v1", "wire_api": "responses", "env_key": "PIPPIN_API_KEY"}
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    settings = [f"model={json.dumps(model.id)}", 'model_provider="pippin"', f"model_providers.pippin={{{table}}}"]
    settings += ['web_search="disabled"', *([f"model_context_window={model.context}"] if model.context else [])]
    return {"PIPPIN_API_KEY": model.key}, [word for each in settings for word in ("-c", each)]


def _opencode(model: Model) -> Start:
    limit = {"context": model.context, "output": min(8192, model.context // 4)}
    entry = {"name": model.id, **({"limit": limit} if model.context else {})}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Pippin",
        "options": {"baseURL": f"{model.api}/v1", "apiKey": model.key},
        "models": {model.id: entry},
    }
    settings = {"provider": {"pippin": provider}, **dict.fromkeys(("model", "small_model"), f"pippin/{model.id}")}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)}, []


def _aider(model: Model) -> Start:
    name = f"openai/{model.id}"
    arguments = ["--model", name, "--openai-api-base", f"{model.api}/v1", "--edit-format", "diff"]
    if model.context:
        limits = {"max_input_tokens": model.context, "input_cost_per_token": 0, "output_cost_per_token": 0}
        file = FOLDER.expanduser() / "aider.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({name: {**limits, "litellm_provider": "openai", "mode": "chat"}}))
        arguments += ["--model-metadata-file", str(file)]
    return {"AIDER_OPENAI_API_KEY": model.key}, arguments


PROGRAMS = {
    "claude": Program("npm install -g @anthropic-ai/claude-code", 20_000, _claude),
    "codex": Program("npm install -g @openai/codex", 10_000, _codex),
    "opencode": Program("npm install -g opencode-ai", 8_000, _opencode),
    "aider": Program("uv tool install aider-chat", 2_000, _aider),
}


def choose(api: Api, name: str | None, program: str) -> Model:
    """The model that a name means, else one that is loaded, with room for the program's prompts if there is one.

    Raises NoNode, StatusFailed, KeyRefused, RequestRefused.
    """
    model = model_id(api, name, api.status()) if name else default_model(api, PROGRAMS[program].prompt)
    try:
        found = api.ask("GET", f"/v1/models/{quote(model, safe='')}")
    except RequestRefused as error:
        if error.why != ModelNotFound.code:
            raise
        raise StatusFailed(
            unknown(api, model) or f"No node has {model}: fetch it with `cluster pull {model}`."
        ) from error
    return Model(api, str(found["id"]), int(found.get("max_model_len", 0)))


def launch(name: str, model: Model, more: Sequence[str], *, prints: bool) -> None:
    """Become the program with this model, or print commands for a shell that start it. Raises ProgramMissing, StatusFailed.

    `more`: its arguments, which come last, so that they win.
    """
    program, path = PROGRAMS[name], shutil.which(name)
    if not path and not prints:
        raise ProgramMissing(f"{name} is not on the PATH.", hint=f"Install it: {program.install}")
    try:
        environment, arguments = program.start(model)
    except OSError as error:
        raise StatusFailed(f"{error.filename} can't be written ({error.strerror}).") from error
    if model.api.scheme == "https" and (authority := os.environ.get("SSL_CERT_FILE")):
        environment["NODE_EXTRA_CA_CERTS"] = str(Path(authority).absolute())  # Node.js reads no other
    elif model.api.fingerprint:
        complain(f"{name} knows no --tls-fingerprint: let SSL_CERT_FILE name the certificate, or its authority")
    command = [name, *arguments, *more]
    if prints or not path:
        print(*(f"export {key}={shlex.quote(value)}" for key, value in environment.items()), sep="\n")
        print(shlex.join(command))
        return
    context = f"context {model.context:,} tokens" if model.context else "context unknown"
    print(printable(f"{name} uses {model.id} ({context}) of {model.api}"), file=sys.stderr, flush=True)
    if 0 < model.context < program.prompt:
        complain(f"the first prompt of {name} has some {program.prompt:,} tokens: load a model with a longer --context")
    hosts = {each: os.environ.get(each) for each in ("NO_PROXY", "no_proxy")}
    direct = {each: ",".join(filter(None, (known, model.api.host))) for each, known in hosts.items()}
    try:
        os.execve(path, command, {**os.environ, **direct, **environment})  # noqa: S606 - no proxy knows a private network
    except OSError as error:  # claude without the program of its own that it is to fetch
        hint = f"Install it again: {program.install}"
        raise ProgramMissing(f"{path} can't be started ({error.strerror}).", hint=hint) from error
