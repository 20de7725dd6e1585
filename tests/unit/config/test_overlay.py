"""Settings from documents: strict types, nearest names, and the way back."""

from __future__ import annotations

import datetime
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.support.naming import naming
from tidemill.config import help_text
from tidemill.config.command_line import document_of
from tidemill.errors import ConfigError
from tidemill.settings.overlay import overlay, to_document


@dataclass(frozen=True)
class Inner:
    """A nested section."""

    rate: float = 0.5
    sizes: tuple[int, ...] = (1, 2)
    names: tuple[str, ...] = ("a",)


@dataclass(frozen=True)
class Outer:
    """A section with every kind of field that settings use."""

    count: int = 3
    name: str = "a"
    flag: bool = False
    kind: Literal["x", "y"] = "x"
    limit: float | None = None
    extra: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=lambda: Inner(rate=0.25))


def test_overlay_keeps_what_the_document_does_not_name() -> None:
    """Values not named keep the given instance's, not the class's defaults."""
    assert overlay(Outer(count=7), {"inner": {"sizes": [4]}}) == Outer(count=7, inner=Inner(0.25, (4,)))


def test_one_text_alone_needs_no_list() -> None:
    """A setting that takes several texts takes one without brackets; numbers are still distinguished from lists."""
    assert overlay(Inner(), {"names": "b"}).names == ("b",)
    assert overlay(Inner(), {"names": ["b", "c"]}).names == ("b", "c")


@dataclass(frozen=True)
class Lists:
    """Settings of a user's algorithm, whose lists have other types than those of the project."""

    sizes: list[int] = field(default_factory=lambda: [1])
    rates: Sequence[float] = (0.5,)
    names: list[str] = field(default_factory=list)
    limits: list[int] | None = None
    marks: set[str] = field(default_factory=set)
    anything: typing.List = field(default_factory=list)  # type: ignore[type-arg] # noqa: UP006
    sequence: typing.Sequence = ()  # type: ignore[type-arg]
    mapping: typing.Mapping = field(default_factory=dict)  # type: ignore[type-arg]


def test_list_of_any_type_is_read_as_a_tuple_is() -> None:
    """Each value has its type, and what is not annotated as a list is a tuple."""
    settings = overlay(Lists(), {"sizes": ["4", 5], "rates": ["1e-4"], "names": "b", "limits": [6]})
    assert settings == Lists([4, 5], (1e-4,), ["b"], [6])
    with pytest.raises(ConfigError, match=naming("sizes[1] 'b' number")):
        overlay(Lists(), {"sizes": [1, "b"]})


def test_bare_list_and_mapping_of_typing_take_anything() -> None:
    """As `list[Any]` and `Mapping[str, Any]` do, in a file, on a command line and in its help."""
    settings = overlay(Lists(), {"anything": [1, "b"], "sequence": [None], "mapping": {"a": 1}})
    assert (settings.anything, settings.sequence, settings.mapping) == ([1, "b"], (None,), {"a": 1})
    words = ["--anything", "1", "b", "--sequence", "2", "--mapping", "a", "3"]
    assert document_of(words, Lists()) == {"anything": ["1", "b"], "sequence": ["2"], "mapping": {"a": 3}}
    kinds = typing.get_type_hints(Lists)
    assert [help_text._kind(kinds[name]) for name in ("anything", "mapping")] == ["VALUE ...", "NAME VALUE ..."]


def test_type_that_no_setting_can_have_is_named() -> None:
    """With the setting, and what is allowed: the mistake is in a user's dataclass."""
    with pytest.raises(ConfigError, match=naming("agent.marks set[str] list tuple")):
        overlay(Lists(), {"marks": ["a"]}, "agent")


_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)


@pytest.mark.parametrize(
    "document,words",
    [
        ({"cuont": 1}, "unknown setting 'cuont'; did you mean 'count'?"),
        ({"inner": {"rte": 1}}, "unknown setting 'inner.rte'; did you mean 'inner.rate'?"),
        ({"zzz": 1}, "known: count, extra, flag, free, inner, kind, limit, name"),
        ({"count": "x"}, "count is 'x', allowed: a whole number"),
        ({"count": True}, "count is True, allowed: a whole number"),
        ({"count": 2.5}, "count is 2.5, allowed: a whole number"),
        ({"flag": 1}, "flag is 1, allowed: true or false"),
        ({"name": Inner}, f"allowed: a text, such as '{__name__}:Inner'"),
        ({"name": naming}, "allowed: a text, such as 'tests.support.naming:naming'"),
        ({"kind": "z"}, "kind is 'z', allowed: one of 'x', 'y'"),
        ({"limit": "much"}, "limit is 'much', allowed: a number or none"),
        ({"inner": 3}, "inner must be a mapping"),
        ({"inner": {"rate": 10**400}}, "allowed: a finite number"),
        ({"free": {"a": [datetime.date(2020, 1, 2)]}}, "free.a[0] is '2020-01-02', allowed: a text: put it in quotes"),
        ({"free": {"a": {"b": {1: 2}}}}, "a key of free.a.b is 1, allowed: a text: put it in quotes, '1'"),
        ({"free": {"a": {1, 2}}}, "free.a is {1, 2}, allowed: numbers, texts, true, false, none"),
        ({"free": {"a": b"x"}}, "free.a is b'x', allowed: numbers, texts"),
        ({"free": {"a": _ENDLESS}}, "free.a is [[...]], allowed: numbers, texts"),
        ({"inner": {"sizes": 3}}, "inner.sizes is 3, allowed: a list"),
        ({"inner": {"sizes": [1, "b"]}}, "inner.sizes[1] is 'b'"),
        ([], "the config must be a mapping"),
    ],
)
def test_overlay_refuses_with_a_message_that_names_field_and_value(document: object, words: str) -> None:
    """Every wrong document is refused in words that let a person correct it."""
    with pytest.raises(ConfigError) as caught:
        overlay(Outer(), document)
    assert words in str(caught.value)


def test_overlay_reads_numbers_as_yaml_writes_them() -> None:
    """An integer or YAML's `1e-4`, which it reads as text, is a float where one is wanted."""
    assert overlay(Outer(), {"limit": 3, "inner": {"rate": "1e-4"}}) == Outer(limit=3.0, inner=Inner(rate=1e-4))


def test_to_document_is_the_inverse_of_overlay() -> None:
    """A document written from settings gives the same settings over any others."""
    settings = Outer(count=9, kind="y", limit=2.5, extra={"a": 1, "b": "t", "c": True}, inner=Inner(2.0, (7, 8)))
    assert overlay(Outer(), to_document(settings)) == settings


def test_setting_of_any_kind_takes_what_json_has() -> None:
    """Digests, the journal of a sweep and the processes of isolated environments hold it as JSON."""
    free = {"a": [None, True, 1, math.inf, "t", {"b": {"c": [0.5]}}], "d": (1, 2)}
    assert overlay(Outer(), {"free": free}).free == free


@pytest.mark.parametrize("text", ["none", "None", "null"])
def test_none_may_be_written_in_a_file_as_on_a_command_line(text: str) -> None:
    """YAML's own word for it is null, and the reference says none."""
    assert overlay(Outer(limit=3.0), {"limit": text}) == Outer(limit=None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_that_may_be_left_out_is_finite_as_others_are(value: float) -> None:
    """A target of NaN is never reached."""
    with pytest.raises(ConfigError, match="limit"):
        overlay(Outer(), {"limit": value})
