"""YAML of settings files: a duplicate key is an error, and 1e5 is a number, unless it is quoted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import yaml

# A tenth of the time of those in Python; not in every build of PyYAML.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Loader(_SafeLoader):  # type: ignore[misc,valid-type]
    """Reads plain values, as the safe loader does."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401 - what the node says
        """Return a node's value; raises YAMLError for one that is not of its kind, as 2024-31-12 is not a date."""
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, LookupError, ValueError) as error:  # of PyYAML's own, by the kind
            kind = node.tag.rpartition(":")[2]
            problem = f"{node.value!r} is not a valid {kind}: put it in quotes if it is a text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; raises YAMLError for a key that is written twice, of which the first would be lost."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a mapping: expected a name", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is written twice: join the two", key.start_mark
                )
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep=deep))


class _Dumper(_SafeDumper):  # type: ignore[misc,valid-type]
    """Writes plain values, as the safe dumper does, and quotes a text that the loader would take for a number."""


for _reads_or_writes in (Loader, _Dumper):
    _reads_or_writes.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


_REPEATED = 1_000_000
"""How many characters and values aliases may add to a text."""


def parse(text: str) -> Any:  # noqa: ANN401 - what the text says
    """Return the value of a YAML text; raises yaml.YAMLError, also for aliases that repeat too much."""
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_size(node, {}) > 2 * len(text) + _REPEATED:  # without an alias a node has no more than two
            problem = f"aliases (*name) repeat over {_REPEATED:,} characters: write out what they stand for, or less"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the characters and values of a node with the nodes of aliases in their place; 0 for a node in itself."""
    if id(node) not in known:
        known[id(node)] = 0
        below = node.value if isinstance(node, yaml.SequenceNode) else ()
        below = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else below
        own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        known[id(node)] = 1 + own + sum(_expanded_size(each, known) for each in below)
    return known[id(node)]


def described_error(error: Exception, source: object) -> str:
    """Return the message of an error of `parse`, with the name of what the text is from."""
    return str(error).replace('"<unicode string>"', str(source))


def written(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, in its order; `parse` takes it back as it was."""
    return str(yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True))
