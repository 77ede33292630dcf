"""A parser of command lines whose errors are one line, which names the option that was probably meant."""

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

EXIT_USAGE = 2
_UNKNOWN = "unrecognized arguments: "


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
        near = self._meant.get(name) or next(iter(difflib.get_close_matches(name, self._options(), 1)), "")
        is_option = name.startswith("-") and near
        hint = f"did you mean {near}?" if is_option else hint
        self.error(f"unknown argument: {argument}" + (f" ({hint})" if hint else ""))

    def _options(self) -> Iterator[str]:
        """The long options of this parser and of its commands."""
        for action in self._actions:
            yield from (option for option in action.option_strings if option.startswith("--"))
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse tells its commands to nobody else
                for command in action.choices.values():
                    yield from command._options()  # noqa: SLF001
