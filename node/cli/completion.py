"""Shell completion: what may come next on the command line, with the model ids and node names of the cluster."""

import argparse
from collections.abc import Callable, Mapping, Sequence

from node.cli.client import Api, StatusFailed
from node.cli.table import node_names
from node.core.node_names import is_plain

TIMEOUT_S = 1.0
"""A shell waits for the answer."""
SCRIPTS = {
    "bash": """\
_cluster() {
  local word
  COMPREPLY=()
  while IFS= read -r word; do
    COMPREPLY+=("$word")
  done < <(cluster complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _cluster cluster
""",
    "zsh": """\
_cluster() {
  local -a found
  found=("${(@f)$(cluster complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n $found ]] && compadd -a found
}
compdef _cluster cluster
""",
    "fish": """\
complete -c cluster -f -a '(cluster complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
"""Each is to be evaluated by its shell."""


def candidates(commands: Mapping[str, argparse.ArgumentParser], words: Sequence[str], api: Api) -> list[str]:
    """The words that the last one of `words` may become. `commands`: by name. `words`: after `cluster`."""
    *before, current = words or [""]
    if not before:
        found = list(commands)
    elif before[0] not in commands:
        found = []
    else:
        found = _of_command(commands[before[0]], before[1:], current, api)
    return [word for word in found if word.startswith(current) and is_plain(word)]


def _of_command(command: argparse.ArgumentParser, before: Sequence[str], current: str, api: Api) -> list[str]:
    actions = command._actions  # noqa: SLF001 - argparse has no public name for it
    options = {name: action for action in actions for name in action.option_strings}
    if current.startswith("-"):
        return list(options)
    if before and before[-1] in options and options[before[-1]].nargs != 0:
        return _values(options[before[-1]], api)
    given = [
        word
        for place, word in enumerate(before)
        if word not in options
        and not (place and before[place - 1] in options and options[before[place - 1]].nargs != 0)
    ]
    arguments = [action for action in actions if not action.option_strings]
    return _values(arguments[len(given)], api) if len(given) < len(arguments) else []


def _values(action: argparse.Action, api: Api) -> list[str]:
    if action.choices:
        return [str(choice) for choice in action.choices]
    sources: dict[object, Callable[[Api], list[str]]] = {"MODEL": _models, "NODE": _nodes}
    kind = "MODEL" if action.dest == "model" else action.metavar
    try:
        return sources[kind](api) if kind in sources else []
    except StatusFailed:  # no node, no names
        return []


def _models(api: Api) -> list[str]:
    """Ids of the models here, and all short names."""
    found = api.ask("GET", "/cluster/models", timeout=TIMEOUT_S)
    return [*(model["id"] for model in found["models"]), *found["short_names"]]


def _nodes(api: Api) -> list[str]:
    return list(node_names(api.status(TIMEOUT_S)["nodes"]).values())
