"""Patterns of messages by what they name."""

from __future__ import annotations

import re

import pytest

from tests.support.naming import naming

_MESSAGE = "table.min_size is -1, must be 0 .. 10 (0.5 of 'max items'), shape (2, 3) of table 't'"


@pytest.mark.parametrize(
    "words",
    ["table.min_size -1 0 10", "10 min_size", "'max items' 0.5", "(2, 3) 't'", "table table", "t", "min_size is"],
)
def test_message_that_names_everything_is_found(words: str) -> None:
    """In whatever order, part of a dotted name or not."""
    assert re.search(naming(words), _MESSAGE)
    assert re.search(naming(words), f"first line\n{_MESSAGE}\nlast")
    assert re.search(naming(*words.split(" ", 1)), _MESSAGE)


@pytest.mark.parametrize("word", ["1", "5", "min", "size", "2", "-10", "(2,)", "'items'", "table table table", "10 10"])
def test_part_of_a_value_is_not_the_value(word: str) -> None:
    """Nor is a word that comes once there twice."""
    assert (re.search(naming(word), _MESSAGE) is None) == (word != "2")
