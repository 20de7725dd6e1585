"""YAML of settings files: a duplicate key is an error, and 1e5 is a number."""

from __future__ import annotations

import re
from typing import Any

import yaml

# A tenth of the time of those in Python; not in every build of PyYAML.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Loader(_SafeLoader):  # type: ignore[misc,valid-type]
    """Reads plain values, as the safe loader does."""

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


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse(text: str) -> Any:  # noqa: ANN401 - what the text says
    """Return the value of a YAML text; raises yaml.YAMLError."""
    return yaml.load(text, Loader)
