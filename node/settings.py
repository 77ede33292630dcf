"""The options of `node` that its command line need not give: from the environment, and from a configuration file.

An option has one name: `--api-port` is PIPPIN_API_PORT in the environment, and `api-port` in the file. A setting is kept
as text, as if it had been written on the command line, until `value_of` parses it there.
"""

import argparse
import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from node.core.usage import nearest

PREFIX = "PIPPIN_"
FILE_VARIABLE = "PIPPIN_CONFIG"
DEFAULT_FILE = Path("~/.config/pippin/config.toml")
EXCEPTIONS = {"host": "PIPPIN_BIND"}
"""Variables that are not named like their options: PIPPIN_HOST is the address that `cluster` asks."""
OTHER_VARIABLES = ("PIPPIN_HOST", "PIPPIN_SECRET", "PIPPIN_API_KEY", FILE_VARIABLE)
COMMAND_LINE_ONLY = ("help", "version", "check", "config", "print-config")
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NUMBER = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?")


class Setting(NamedTuple):
    given: bool | tuple[str, ...]
    """Whether a switch is on; or the texts of an option's values, of which only a repeatable one has several."""
    source: str
    """Shown to users: "PIPPIN_API_PORT", or a file and the name in it."""


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options that can be settings, by name without dashes."""
    named = {action.option_strings[-1].removeprefix("--"): action for action in _actions(parser)}
    return {name: action for name, action in named.items() if name not in COMMAND_LINE_ONLY}


def nothing_given(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """A namespace to parse into, in which options that are not given stay None: argparse fills in no default."""
    return argparse.Namespace(**{action.dest: None for action in _actions(parser)})


def given_in(namespace: argparse.Namespace) -> dict[str, Any]:
    """Values of the options that a command line has given, by `dest`."""
    return {dest: value for dest, value in vars(namespace).items() if value is not None}


def read_settings(
    parser: argparse.ArgumentParser, file: Path | None, environment: Mapping[str, str] = os.environ
) -> dict[str, Setting]:
    """Settings of the environment, then of the file: `file`, else the one in PIPPIN_CONFIG, else the default one.

    Only the default file may be missing. Raises ValueError, which says where the mistake is.
    """
    actions = actions_of(parser)
    variable = environment.get(FILE_VARIABLE)
    try:
        asked = file or (Path(variable).expanduser() if variable else None)
    except RuntimeError:
        raise ValueError(f"{FILE_VARIABLE}: there is no home of the user in {variable}") from None
    default = DEFAULT_FILE.expanduser()
    of_file = _of_file(asked or default, actions) if asked or default.exists() else {}
    return of_file | _of_environment(environment, actions)


def value_of(parser: argparse.ArgumentParser, name: str, setting: Setting) -> dict[str, Any]:
    """Parse a setting as an option, with a parser that does not exit: its value by `dest`. Raises ValueError."""
    if isinstance(setting.given, bool):
        arguments = [f"--{name}"] if setting.given else []
    else:
        arguments = [f"--{name}={text}" for text in setting.given]
    try:
        return given_in(parser.parse_args(arguments, nothing_given(parser)))
    except argparse.ArgumentError as error:
        raise ValueError(f"{setting.source}: {error.message}") from error


def misspelt(parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Warnings of variables that are nearly named like one of an option.

    They are no errors: others may use the prefix, such as a service called "pippin" of Kubernetes.
    """
    known = {_variable(name) for name in actions_of(parser)}
    unknown = [name for name in environment if name.startswith(PREFIX) and name not in {*known, *OTHER_VARIABLES}]
    close = {name: difflib.get_close_matches(name, known, 1, 0.9) for name in unknown}
    return [f"{name} is not read; is {found[0]} meant?" for name, found in close.items() if found]


def as_toml(
    parser: argparse.ArgumentParser, arguments: Sequence[str], settings: Mapping[str, Setting], defaults: object
) -> str:
    """A configuration file of all options, each with a comment that says where its value comes from.

    `arguments` have been parsed without errors. `defaults` has an attribute for each `dest`.
    """
    whole = {**settings, **_of_command_line(parser, arguments)}
    lines = []
    for name, action in actions_of(parser).items():
        setting = whole.get(name)
        default = not getattr(defaults, action.dest) if action.const is False else getattr(defaults, action.dest)
        text = _toml(setting.given, action) if setting else _toml_of_default(default)
        line = f"{name} = {text}" if text else f"# {name} ="
        lines.append(f"{line:<39} # {setting.source if setting else 'default'}")
    return "\n".join(lines)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001 - argparse lists its options nowhere else


def _of_file(path: Path, actions: Mapping[str, argparse.Action]) -> dict[str, Setting]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"the configuration file {path} can't be read: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise ValueError(f"{path}: {error}") from error
    settings = {}
    for name, value in found.items():
        if name not in actions:
            near = nearest(name, actions)
            hint = f"; the nearest is {near!r}" if near else ""
            raise ValueError(f"{path}: there is no option {name!r}{hint}")
        try:
            settings[name] = Setting(_texts(value, actions[name]), f"{path}: {name}")
        except ValueError as error:
            raise ValueError(f"{path}: {name}: {error}") from error
    return settings


def _of_environment(environment: Mapping[str, str], actions: Mapping[str, argparse.Action]) -> dict[str, Setting]:
    """An empty variable counts as none. Commas separate the values of a repeatable option."""
    settings = {}
    for name, action in actions.items():
        variable = _variable(name)
        text = environment.get(variable, "").strip()
        if not text:
            continue
        given: bool | tuple[str, ...] = (text,)
        if _is_switch(action):
            if text.lower() not in _BOOLEANS:
                raise ValueError(f"{variable} is {text!r}; it may be true or false")
            given = _BOOLEANS[text.lower()]
        elif _is_repeatable(action):
            given = tuple(part.strip() for part in text.split(",") if part.strip())
        settings[name] = Setting(given, variable)
    return settings


def _of_command_line(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Setting]:
    """Options as they are written there. The parser checks no values from now on."""
    actions = actions_of(parser)
    for action in actions.values():
        action.type = action.choices = None
    found = given_in(parser.parse_args(arguments, nothing_given(parser)))
    settings: dict[str, Setting] = {}
    for name, action in actions.items():
        if action.dest in found:
            value = found[action.dest]
            texts = tuple(value) if isinstance(value, list) else (value,)
            settings[name] = Setting(_is_switch(action) or texts, f"--{name}")
    return settings


def _variable(name: str) -> str:
    return EXCEPTIONS.get(name, PREFIX + name.upper().replace("-", "_"))


def _is_switch(action: argparse.Action) -> bool:
    return action.nargs == 0


def _is_repeatable(action: argparse.Action) -> bool:
    return isinstance(action.default, list)


def _texts(value: object, action: argparse.Action) -> bool | tuple[str, ...]:
    """The texts of a value of TOML. Raises ValueError for one of a wrong type."""
    if _is_switch(action):
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    values = value if isinstance(value, list) and _is_repeatable(action) else [value]
    if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values):
        raise ValueError("must be a text or a number" + (", or a list of these" if _is_repeatable(action) else ""))
    return tuple(map(str, values))


def _toml(given: bool | tuple[str, ...], action: argparse.Action) -> str:
    if isinstance(given, bool):
        return str(given).lower()
    texts = [text if _NUMBER.fullmatch(text) else json.dumps(text, ensure_ascii=False) for text in given]
    return f"[{', '.join(texts)}]" if _is_repeatable(action) else texts[0]


def _toml_of_default(value: object) -> str:
    """Empty for a default that has no value, such as "whatever fits"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) and value else ""
