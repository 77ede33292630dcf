"""docs/reference.md: the options of `node` and the commands of `cluster`, drawn from the programs themselves.

advice.toml has what their help does not say.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from node.check.command import check
from node.cli.commands import cluster
from node.core.usage import Option
from node.options import command as node
from node.settings import settings_of

ADVICE = tomllib.loads((Path(__file__).parent / "advice.toml").read_text())
HEAD = """# Reference

The options of [`node`](#node) and of [`node --check`](#node---check), and the commands of [`cluster`](#cluster), as the programs know
them: `scripts/pages.py` writes this page. [operations.md](operations.md) says what to use them for.

## node

An option comes from the command line, else from the environment, else from the [file](operations.md#configuration)."""
OF_CLUSTER = """## cluster

Commands with *asks a node* also take"""


def page(_: str) -> str:
    """Return the whole page."""
    unused = set(ADVICE["options"]) - set(settings_of(node)) - {param.name for param in node.params}
    if unused:
        raise SystemExit(f"scripts/pages/advice.toml has options that node lacks: {', '.join(sorted(unused))}")
    lines = [
        HEAD,
        *_options_of_node(),
        ADVICE["reference"]["node"],
        *_check(),
        *_commands(),
        ADVICE["reference"]["cluster"],
    ]
    return "\n".join(lines).rstrip() + "\n"


def _options_of_node() -> Iterator[str]:
    context = click.Context(node)
    names = {option.name: name for name, option in settings_of(node).items()}
    sections: dict[str, list[Option]] = {}
    for param in node.params:
        if isinstance(param, Option):
            sections.setdefault(param.section, []).append(param)
    for section, options in sections.items():
        yield f"\n### {section}\n"
        yield from ("| option | environment | file | |", "| --- | --- | --- | --- |")
        for option in options:
            name = f"`{names[option.name]}`" if option.name in names else ""
            variable = f"`{option.envvar}`" if option.envvar else ""
            more = ADVICE["options"].get(option.opts[-1].removeprefix("--"), "")
            about = f"{option.help}{'. ' if more else ''}{more[:1].upper()}{more[1:]}"
            yield _row(f"`{option.get_help_spec(context)}`", variable, name, about)


def _check() -> Iterator[str]:
    yield f"\n## node --check\n\n{_plain(check.help)}\n"
    yield from _table(check, check.params)


def _commands() -> Iterator[str]:
    status = cluster.commands["status"]
    common = [param for param in status.params if param.name in ("api", "key")]
    yield f"\n{OF_CLUSTER}\n"
    yield from _table(status, common)
    yield from _below(cluster, click.Context(cluster, info_name="cluster"), [param.opts for param in common])


def _below(group: click.Group, parent: click.Context, common: list[list[str]]) -> Iterator[str]:
    for name, command in group.commands.items():
        context = click.Context(command, parent=parent, info_name=name)
        if isinstance(command, click.Group):
            yield from _below(command, context, common)
        elif not command.hidden:
            yield f"\n### {context.command_path}\n"
            own = [param for param in command.params if param.opts not in common]
            asks = " *Asks a node.*" if len(own) < len(command.params) else ""
            yield f"{_plain(command.help)}{asks}"
            if own:
                yield ""
                yield from _table(command, own)


def _table(command: click.Command, params: list[click.Parameter]) -> Iterator[str]:
    yield from ("| option | |", "| --- | --- |")
    context = click.Context(command)
    for param in params:
        spec, about = param.get_help_record(context) or ("", "")
        yield _row(f"`{spec}`", about)


def _row(*cells: str) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _plain(text: str | None) -> str:
    return " ".join((text or "").split())
