"""Shell completion: what may come next on the command line, with the model ids and node names of the cluster."""

from collections.abc import Callable, Sequence

import click

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
complete -o default -F _cluster cluster pippin
""",
    "zsh": """\
_cluster() {
  local -a found
  found=("${(@f)$(cluster complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n $found ]] && compadd -a found
}
compdef _cluster cluster pippin
""",
    "fish": """\
for program in cluster pippin
  complete -c $program -f -a '(cluster complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
end
""",
}
"""Each is to be evaluated by its shell."""


def candidates(command: click.Group, words: Sequence[str]) -> list[str]:
    """The words that the last one of `words` may become. `words`: after the program's name."""
    from click.shell_completion import ShellComplete  # noqa: PLC0415 - no other command needs it

    *before, current = words or [""]
    if before and before[0] not in command.commands:
        return []  # click would offer commands
    found = ShellComplete(command, {}, str(command.name), "").get_completions(before, current)
    return [item.value for item in found if is_plain(item.value)]


def _completer(names: Callable[[Api], list[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        try:
            found = names(context.params["api"]._replace(key=context.params["key"] or ""))
        except (StatusFailed, AttributeError):  # no node, or no address: no names
            return []
        return [name for name in found if name.startswith(begun)]

    return complete


def _models(api: Api) -> list[str]:
    """Ids of the models here, and all short names."""
    found = api.ask("GET", "/cluster/models", timeout=TIMEOUT_S)
    return [*(model["id"] for model in found["models"]), *found["short_names"]]


models = _completer(_models)
nodes = _completer(lambda api: list(node_names(api.status(TIMEOUT_S)["nodes"]).values()))
