"""Command lines by click, whose errors are one line, which names the option or the command that was probably meant."""

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource

EXIT_USAGE = 2
_SIMILAR = 0.75
"""Minimum similarity of a name and the one that was probably meant, from 0 to 1: two letters of five changed places."""
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, apart from dashes at its beginning; empty if none resembles it."""
    plain = {each.lstrip("-"): each for each in names}
    near = difflib.get_close_matches(name.lstrip("-"), plain, 1, _SIMILAR)
    return plain[near[0]] if near else ""


def run(
    command: click.Command,
    argv: Sequence[str] | None = None,
    meant: Mapping[str, str] = MappingProxyType({}),
    hint: str = "",
    *,
    name: str = "",
) -> Any:
    """What the command returns. `argv`: by default those of this process. Exits after --help, and with 2 if they are wrong.

    `meant`: options of other programs, and the one that stands for each here. `hint`: about what resembles no option. `name`:
    of the program; by default the command's.
    """
    assert command.name
    name = name or command.name
    try:
        with command.make_context(name, list(sys.argv[1:] if argv is None else argv), **_SETTINGS) as context:
            return command.invoke(context)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        sys.stderr.write(f"{path}: {_told(error, meant, hint).rstrip('.')}. See {path} --help\n")
        sys.exit(EXIT_USAGE)


def source_of(context: click.Context, param: click.Parameter) -> str:
    """Where a value comes from, as users know it: "--api-port", "PIPPIN_API_PORT", or the file `context.obj` and the name in
    it; empty for a default.
    """
    match context.get_parameter_source(param.name or ""):
        case ParameterSource.COMMANDLINE:
            return param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name
        case ParameterSource.ENVIRONMENT:
            return str(param.envvar)
        case ParameterSource.DEFAULT_MAP:
            return f"{context.obj}: {param.opts[-1].removeprefix('--')}"
    return ""


class Parsed(click.ParamType[Any]):
    """Values of a function that parses a text, and raises OSError or ValueError with the mistake."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.name = parse.__name__.strip("_")
        self._parse = parse

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except (OSError, ValueError) as error:
            self.fail(str(error), param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        return [part.strip() for part in rv.split(",") if part.strip()]


class OneOf(click.Choice[Any]):
    """One of a few values; a wrong one is told with the nearest of them."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        return _invalid(str(value), list(map(str, self.choices)))


class Option(click.Option):
    """`section`: the heading under which --help shows it. An empty variable is none."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return (super().resolve_envvar_value(ctx) or "").strip() or None

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        ctx.meta[self.name] = value  # as it was given
        given = set(value if self.multiple else [value])
        if source_of(ctx, self) in self.opts and given & set(_options(ctx.command)):
            raise click.BadParameter("expected one argument")  # it is followed by another option
        return super().type_cast_value(ctx, value)


option = partial(click.option, cls=Option)


class Command(click.Command):
    """A command whose options stand in sections."""

    allow_extra_args = True  # so that `parse_args` can name the first one

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            error.ctx = ctx  # which click leaves out
            raise
        if rest and not ctx.resilient_parsing:
            raise click.NoSuchOption(rest[0], ctx=ctx)
        return rest

    def get_short_help_str(self, limit: int = 0) -> str:
        return self.help or ""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(click.Group):
    """`sections`: headings under which --help shows the commands, with their names; without any, all commands by name."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] = MappingProxyType({}), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = sorted(name for name, command in self.commands.items() if not command.hidden)
        for title, names in (self.sections or {"Commands": shown}).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str()) for name in names])

    def get_short_help_str(self, limit: int = 0) -> str:
        return self.help or ""


def near(command: click.Command, name: str) -> str:
    """The option that was probably meant; empty if none resembles the name."""
    return nearest(name, _options(command))


def _options(command: click.Command) -> Iterator[str]:
    """The long options of a command, and of those that it has."""
    for param in command.get_params(click.Context(command, **_SETTINGS)):
        yield from (option for option in param.opts if option.startswith("--"))
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _options(each)


def _told(error: click.UsageError, meant: Mapping[str, str], hint: str) -> str:
    """The error as one line."""
    match error:
        case click.NoSuchOption(option_name=name, ctx=click.Context(command=command)):
            begun = (each for each in _options(command) if each.startswith(name))
            similar = (meant.get(name) or near(command, name) or next(begun, "")) if name.startswith("-") else ""
            if similar:
                hint = f"did you mean {similar}?" if similar != name else "it stands behind the command"
            return f"unknown argument: {name}" + (f" ({hint})" if hint else "")
        case click.NoSuchCommand(command_name=name, ctx=click.Context(command=click.Group(commands=commands))):
            return f"argument COMMAND: {_invalid(name, [each for each, of in commands.items() if not of.hidden])}"
        case click.exceptions.NoArgsIsHelpError():
            return "the following arguments are required: COMMAND"
        case click.MissingParameter(param=click.Parameter() as param):
            return f"the following arguments are required: {param.human_readable_name}"
        case click.BadParameter(param=click.Parameter() as param, ctx=click.Context() as context):
            source = source_of(context, param)
            return f"{'argument ' if source in (*param.opts, param.metavar) else ''}{source}: {error.message}"
    return error.format_message()


def _invalid(value: str, choices: Sequence[str]) -> str:
    similar = nearest(value, choices)
    hint = f"did you mean {similar}?" if similar else f"choose from {', '.join(choices)}"
    return f"invalid choice: {value!r} ({hint})"
