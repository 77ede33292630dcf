"""The options of `node` that its command line need not give: from the environment, and from a configuration file.

An option has one name: `--api-port` is PIPPIN_API_PORT in the environment, and `api-port` in the file. A setting is kept
as text, as if it had been written on the command line, until its option parses it.
"""

import difflib
import json
import os
import re
import tomllib
from pathlib import Path

import click

from node.core.usage import nearest, source_of
from node.option_values import Switch

PREFIX = "PIPPIN_"
FILE_VARIABLE = "PIPPIN_CONFIG"
DEFAULT_FILE = Path("~/.config/pippin/config.toml")
EXCEPTIONS = {"host": "PIPPIN_BIND"}
"""Variables that are not named like their options: PIPPIN_HOST is the address that `cluster` asks."""
OTHER_VARIABLES = ("PIPPIN_HOST", "PIPPIN_SECRET", "PIPPIN_API_KEY", FILE_VARIABLE)
_NUMBER = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?")


def variable(option: str) -> str:
    """The variable of an option: PIPPIN_API_PORT of "--api-port"."""
    name = option.removeprefix("--")
    return EXCEPTIONS.get(name, PREFIX + name.upper().replace("-", "_"))


def settings_of(command: click.Command) -> dict[str, click.Option]:
    """The options that can be settings, by name without dashes."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {option.opts[-1].removeprefix("--"): option for option in options if option.envvar and option.expose_value}


def read_file(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    """Put the settings of a file behind those of the environment: `file`, else the default one, which may be missing.

    Raises UsageError, which says where the mistake is.
    """
    path = file or DEFAULT_FILE.expanduser()
    if not file and not path.exists():
        return
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"the configuration file {path} can't be read: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise click.UsageError(f"{path}: {error}") from error
    options, given = settings_of(context.command), {}
    for name, value in found.items():
        if name not in options:
            near = nearest(name, options)
            hint = f"; the nearest is {near!r}" if near else ""
            raise click.UsageError(f"{path}: there is no option {name!r}{hint}")
        try:
            given[options[name].name] = _given(value, options[name])
        except ValueError as error:
            raise click.UsageError(f"{path}: {name}: {error}") from error
    context.obj, context.default_map = path, given


def misspelt(command: click.Command) -> list[str]:
    """Warnings of variables that are nearly named like one of an option.

    They are no errors: others may use the prefix, such as a service called "pippin" of Kubernetes.
    """
    known = {str(option.envvar) for option in settings_of(command).values()}
    unknown = [name for name in os.environ if name.startswith(PREFIX) and name not in {*known, *OTHER_VARIABLES}]
    close = {name: difflib.get_close_matches(name, known, 1, 0.9) for name in unknown}
    return [f"{name} is not read; is {found[0]} meant?" for name, found in close.items() if found]


def as_toml(context: click.Context, values: object) -> str:
    """A configuration file of all options, each with a comment that says where its value comes from.

    `values` has an attribute for the value of each option, given or not.
    """
    lines = []
    for name, option in settings_of(context.command).items():
        source, value = source_of(context, option), getattr(values, option.name)
        if isinstance(option.type, Switch):
            text = _toml(value is option.type.on)
        elif source:
            given = context.meta[option.name]
            texts = [
                each if _NUMBER.fullmatch(each) else _toml(each) for each in (given if option.multiple else [given])
            ]
            text = f"[{', '.join(texts)}]" if option.multiple else texts[0]
        else:
            text = _toml(value)
        line = f"{name} = {text}" if text else f"# {name} ="
        lines.append(f"{line:<39} # {source or 'default'}")
    return "\n".join(lines)


def _given(value: object, option: click.Option) -> bool | str | list[str]:
    """A value of TOML as the option takes it. Raises ValueError for one of a wrong type."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    texts = value if isinstance(value, list) and option.multiple else [value]
    if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in texts):
        raise ValueError("must be a text or a number" + (", or a list of these" if option.multiple else ""))
    return list(map(str, texts)) if option.multiple else str(value)


def _toml(value: object) -> str:
    """Empty for a value that says nothing, such as "whatever fits"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) and value else ""
