"""n8n's program, which executes workflows: a chain and an agent with its nodes of OpenAI's and Ollama's chat models."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agents import MODEL as AGENT_MODEL
from agents import Exchange, all_answered, end_soon, recording, run_agent
from harness import HELLO, MODEL, run

HERE = Path(os.environ["CLIENT_ENVIRONMENT"])
NODE = HERE / "node_modules" / "node" / "bin" / "node"
"""n8n needs Node.js 24, which may not be the one that runs npm."""
NODES = "@n8n/n8n-nodes-langchain"
RUN_S = 600.0
SETTINGS = {
    "N8N_DIAGNOSTICS_ENABLED": "false",
    "N8N_VERSION_NOTIFICATIONS_ENABLED": "false",
    "N8N_ENFORCE_SETTINGS_FILE_PERMISSIONS": "false",
    "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}",
}


def build() -> None:
    """Run the install scripts of two packages, which npm was told to leave out: Node.js itself, and the database in C++."""
    headers = Path(subprocess.check_output(["node", "-p", "process.execPath"], text=True).strip()).parents[1]
    if not (HERE / "node_modules" / "sqlite3" / "build").exists():
        command = ["npm", "rebuild", "node", "sqlite3"]
        given = {**os.environ, "npm_config_nodedir": str(headers)}
        subprocess.run(command, cwd=HERE, env=given, capture_output=True, timeout=RUN_S, check=True)


def workflow(name: str, root: dict[str, Any], model: dict[str, Any], *tools: str) -> dict[str, Any]:
    """A node that starts it, the node `root`, its model and its tools."""
    nodes = [{"name": "Start", "type": "n8n-nodes-base.manualTrigger", "typeVersion": 1, "parameters": {}}]
    nodes += [{"name": "Root", **root}, {"name": "Model", **model}]
    nodes += [{"name": tool, "type": f"{NODES}.{tool}", "typeVersion": 1, "parameters": {}} for tool in tools]
    ways = {"Start": "main", "Model": "ai_languageModel", **dict.fromkeys(tools, "ai_tool")}
    return {
        "id": name,
        "name": name,
        "active": False,
        "settings": {},
        "nodes": [{"id": each["name"], "position": [0, 0], **each} for each in nodes],
        "connections": {name: {way: [[{"node": "Root", "type": way, "index": 0}]]} for name, way in ways.items()},
    }


def openai_model(name: str, *, responses: bool) -> dict[str, Any]:
    chosen = {"model": {"__rl": True, "mode": "id", "value": name}, "responsesApiEnabled": responses, "options": {}}
    return _model("lmChatOpenAi", 1.3, chosen, "openAiApi")


def ollama_model(name: str) -> dict[str, Any]:
    return _model("lmChatOllama", 1, {"model": name, "options": {}}, "ollamaApi")


def _model(kind: str, version: float, parameters: dict[str, Any], credential: str) -> dict[str, Any]:
    known = {credential: {"id": credential, "name": credential}}
    return {"type": f"{NODES}.{kind}", "typeVersion": version, "parameters": parameters, "credentials": known}


CHAIN = {"type": f"{NODES}.chainLlm", "typeVersion": 1.7, "parameters": {"promptType": "define", "text": "Hello"}}
AGENT = {"type": f"{NODES}.agent", "typeVersion": 3, "parameters": {"promptType": "define", "text": "Hello"}}
TOOL = "toolCalculator"
MODELS: dict[str, Callable[[str], dict[str, Any]]] = {
    "chat": lambda name: openai_model(name, responses=False),
    "responses": lambda name: openai_model(name, responses=True),
    "ollama": ollama_model,
}


def executed(
    workflows: Sequence[dict[str, Any]], change: Callable[[dict[str, Any]], None]
) -> Iterator[tuple[str, list[Exchange]]]:
    """What the root node of each workflow returns, and what was sent for that."""
    program = [str(NODE), str(HERE / "node_modules" / "n8n" / "bin" / "n8n")]
    with tempfile.TemporaryDirectory() as directory, recording(change) as recorder:
        folder = Path(directory)
        given = {"openAiApi": {"apiKey": "any", "url": recorder.url}}
        given["ollamaApi"] = {"baseUrl": recorder.url.removesuffix("/v1")}
        known = [{"id": name, "name": name, "type": name, "data": data} for name, data in given.items()]
        for kind, made in (("credentials", known), ("workflow", workflows)):
            (folder / kind).write_text(json.dumps(made))
            run_agent([*program, f"import:{kind}", f"--input={kind}"], folder, **SETTINGS)
        for each in workflows:
            recorder.exchanges.clear()
            said = run_agent([*program, "execute", f"--id={each['id']}", "--rawOutput"], folder, **SETTINGS)
            result, _ = json.JSONDecoder().raw_decode(said[said.index("\n{\n") + 1 :])
            (item,) = result["data"]["resultData"]["runData"]["Root"][-1]["data"]["main"][0]
            all_answered(recorder.exchanges)
            yield item["json"].get("text", item["json"].get("output")), list(recorder.exchanges)


def chains_answer() -> None:
    workflows = [workflow(kind, CHAIN, model(MODEL)) for kind, model in MODELS.items()]
    for text, _ in executed(workflows, lambda _: None):
        assert text == HELLO, text


def agents_call_their_tool() -> None:
    """Ollama's API has no way to demand a call: there the tool is only offered."""

    def call_once(body: dict[str, Any]) -> None:
        said = body.get("messages") or body.get("input") or [{}]
        if body.get("tools") and "options" not in body and not said[-1].keys() & {"tool_call_id", "call_id"}:
            body["tool_choice"] = "required"
        elif "options" in body:
            body["options"]["num_predict"] = 16
        else:
            end_soon(body)

    workflows = [workflow(kind, AGENT, model(AGENT_MODEL), TOOL) for kind, model in MODELS.items()]
    for made, (text, exchanges) in zip(workflows, executed(workflows, call_once), strict=True):
        assert isinstance(text, str)
        assert exchanges[0].sent["tools"]
        if made["id"] != "ollama":
            *_, call, result = exchanges[1].sent["messages" if made["id"] == "chat" else "input"]
            assert TOOL in json.dumps(call) + json.dumps(result), (call, result)
            assert result.keys() & {"tool_call_id", "call_id"}


if __name__ == "__main__":
    build()
    run(chains_answer, agents_call_their_tool)
