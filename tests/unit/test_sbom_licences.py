"""The licences in the bill of materials: what the installed packages state."""

from __future__ import annotations

from email.message import Message
from importlib import metadata
from typing import Any, cast

import pytest

from scripts.sbom_licences import add_licences, licences_of


@pytest.mark.parametrize(
    "stated, expected",
    [
        (["License-Expression: MIT OR Apache-2.0", "License: something else"], [{"expression": "MIT OR Apache-2.0"}]),
        (["License: Apache 2.0"], [{"license": {"id": "Apache-2.0"}}]),
        (["License: BSD", "Classifier: License :: OSI Approved :: MIT License"], [{"license": {"name": "BSD"}}]),
        (
            [
                "License: " + "Redistribution is permitted provided that " * 3,
                "Classifier: License :: OSI Approved :: BSD License",
            ],
            [{"license": {"name": "BSD License"}}],
        ),
        (["Classifier: Typing :: Typed"], []),
    ],
)
def test_licence_is_the_most_exact_that_a_package_states(stated: list[str], expected: list[dict[str, Any]]) -> None:
    """An expression before a name, a name before classifiers, and the text of a licence is none of them."""
    package = Message()
    for line in stated:
        name, _, value = line.partition(": ")
        package[name] = value
    assert licences_of(cast(metadata.PackageMetadata, package)) == expected


def test_component_that_is_not_installed_at_its_version_is_named() -> None:
    """Another version may have another licence."""
    components: list[dict[str, Any]] = [
        {"name": "pytest", "version": pytest.__version__},
        {"name": "numpy", "version": "0.0.1"},
        {"name": "no-such-package", "version": "1"},
    ]
    wrong = add_licences(components)
    assert components[0]["licenses"] in ([{"expression": "MIT"}], [{"license": {"id": "MIT"}}])
    assert wrong == [
        f"numpy is installed at {metadata.version('numpy')}, not at 0.0.1",
        "no-such-package is not installed here",
    ]
