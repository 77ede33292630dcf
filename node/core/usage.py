"""A parser of command lines whose errors are one line, which names the option that was probably meant."""

import argparse
import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

EXIT_USAGE = 2
_UNKNOWN = "unrecognized arguments: "
_SIMILAR = 0.75
"""Minimum similarity of a name and the one that was probably meant, from 0 to 1: two letters of five changed places."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, apart from dashes at its beginning; empty if none resembles it."""
    plain = {each.lstrip("-"): each for each in names}
    near = difflib.get_close_matches(name.lstrip("-"), plain, 1, _SIMILAR)
    return plain[near[0]] if near else ""


class Parser(argparse.ArgumentParser):
    """`meant`: options of other programs, and the one that stands for each here."""

    def __init__(self, *args: Any, meant: Mapping[str, str] = MappingProxyType({}), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._meant = meant

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):  # as `parse_args` says it
            self.refuse(message.removeprefix(_UNKNOWN).split(" ")[0])
        sys.stderr.write(f"{self.prog}: {message.rstrip('.')}. See {self.prog} --help\n")
        raise SystemExit(EXIT_USAGE)

    def refuse(self, argument: str, hint: str = "") -> NoReturn:
        """Exit because of an argument that the parser does not know. `hint` is said unless it resembles an option."""
        name = argument.partition("=")[0]
        near = self._near(name)
        is_option = name.startswith("-") and near
        hint = f"did you mean {near}?" if is_option else hint
        self.error(f"unknown argument: {argument}" + (f" ({hint})" if hint else ""))

    def knows(self, option: str) -> bool:
        """Whether it has this option, or one that was probably meant by it."""
        return option in self._option_string_actions or bool(self._near(option))

    def _near(self, name: str) -> str:
        return self._meant.get(name) or nearest(name, self._options())

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """As argparse does, but commands without help are not told to anybody. Raises ArgumentError."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            shown = [each.dest for each in action._choices_actions]  # noqa: SLF001
        else:
            shown = [str(each) for each in action.choices]
        near = nearest(str(value), shown)
        hint = f"did you mean {near}?" if near else f"choose from {', '.join(shown)}"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r} ({hint})")

    def _options(self) -> Iterator[str]:
        """The long options of this parser and of its commands."""
        for action in self._actions:
            yield from (option for option in action.option_strings if option.startswith("--"))
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse tells its commands to nobody else
                for command in action.choices.values():
                    yield from command._options()  # noqa: SLF001
