"""Settings of a dataclass as documentation: its fields, their types, and the docstrings below them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from tidemill.rpc.settings import ServerSettings


class Setting(NamedTuple):
    """One setting: its dotted name, its default or what a file says, its type, and what it means, on one line."""

    name: str
    value: Any
    kind: Any
    text: str


def settings(prefix: str, values: Any, *, with_servers: bool = False) -> Iterator[Setting]:  # noqa: ANN401 - any settings
    """Yield each setting of a dataclass of settings.

    Args:
        prefix: Dotted name of the section.
        values: The dataclass.
        with_servers: Whether those of a service's server are among them, instead of the server as one setting.
    """
    for field in fields_of(type(values)):
        value, name = getattr(values, field.name), f"{prefix}.{field.name}"
        if dataclasses.is_dataclass(value) and (with_servers or not isinstance(value, ServerSettings)):
            yield from settings(name, value, with_servers=with_servers)
        else:
            yield field._replace(name=name, value=value)


def fields_of(kind: type) -> Iterator[Setting]:
    """Yield each field of a dataclass, with its default, or `dataclasses.MISSING`, as its value."""
    kinds, texts = typing.get_type_hints(kind), _docstrings(kind)
    for field in dataclasses.fields(kind):
        yield Setting(field.name, field.default, kinds[field.name], texts.get(field.name, ""))


def summary(kind: type) -> str:
    """Return the first paragraph of a dataclass's docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass and of those that it is made from, on one line."""
    found = {}
    for each in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in pairwise(tree.body):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_text:
                found[node.target.id] = re.sub(r"\s+", " ", str(after.value.value)).strip()  # type: ignore[attr-defined]
    return found
