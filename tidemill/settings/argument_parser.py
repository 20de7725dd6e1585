"""The parser of commands with few options: a wrong command line gets one line with the value and what is allowed."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from tidemill.settings.check import nearest

_KINDS = {"int": "a whole number", "float": "a number"}


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser whose errors are those of `tidemill train`: one line, without the usage.

    Arguments with `type=Path` may begin with `~`: bash leaves it as it is after `--option=`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - argparse's
        """Prepare, as argparse's parser."""
        super().__init__(*args, **options)
        self.register("type", Path, lambda text: Path(os.path.expanduser(text)))

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, what is allowed and what to do; exit with 2."""
        self.exit(2, f"{self.prog}: {self._put_better(message)}\n")

    def _put_better(self, message: str) -> str:
        """Return one of argparse's messages as Tidemill puts it, and any other as it is."""
        more = f"; see `{self.prog} --help`"
        if match := re.fullmatch(r"the following arguments are required: (.*)", message):
            missing = [self._described(name) for name in match[1].split(", ")]
            return f"missing {'; missing '.join(missing)}{more}"
        if match := re.fullmatch(r"unrecognized arguments: (.*)", message):
            word = match[1].split()[0]
            name = word.partition("=")[0]
            if word.startswith("-"):
                return f"unknown option {name}{nearest(name, self._option_string_actions) or more}"
            return f"{word!r} is one argument too many{more}"
        if match := re.fullmatch(r"argument ([^:]*): (.*)", message, re.DOTALL):
            return self._put_value_better(match[1].split("/")[-1], match[2])
        return message

    def _put_value_better(self, name: str, wrong: str) -> str:
        """Return one of argparse's messages about a value as Tidemill puts it."""
        if value := re.match(r"invalid choice: '?(.*?)'? \(choose from", wrong):
            choices = [str(each) for each in self._action(name).choices or ()]
            return f"{name} is {value[1]!r}, allowed: {', '.join(choices)}{nearest(value[1], choices)}"
        if value := re.fullmatch(r"invalid (\w+) value: (.*)", wrong):
            return f"{name} is {value[2]}, allowed: {_KINDS.get(value[1], value[1])}"
        if re.fullmatch(r"expected .*argument.*", wrong):
            return f"option {self._described(name)} needs a value"
        return f"{name}: {wrong}"

    def _action(self, name: str) -> argparse.Action | argparse.Namespace:
        """Return the argument that argparse calls `name`; one without anything if there is none."""
        for action in self._actions:
            if name in (*action.option_strings, action.metavar, action.dest):
                return action
        return argparse.Namespace(choices=None, help=None, metavar=None, option_strings=())

    def _described(self, name: str) -> str:
        """Return an argument with its help, such as `FOLDER (folder of the files)`."""
        action: Any = self._action(name)
        shown = f"{name} {action.metavar}" if action.option_strings and action.metavar else name
        return f"{shown} ({action.help})" if action.help else shown
