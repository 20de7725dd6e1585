"""Folders import each other in one direction: what a folder needs lies below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

DOORS = ("tidemill/__init__.py", "tidemill/replay/__init__.py")
"""Packages that offer what lies below and beside them, as their stubs list it. Nothing in the house enters by them."""

KNOTS: list[set[str]] = []
"""Folders that import each other, directly or through others. A folder that has left its knot is removed here, and no
other is added."""

Places = Mapping[str, Mapping[str, str]]
"""By folder or door: the folders that it imports, and a place where it does."""


def place_of(module: str) -> str | None:
    """Return the folder of a module, or the door that it is; None if there is no such module."""
    parts = module.split(".")
    if parts[0] != "tidemill":
        return None
    path = Path(*parts[1:] if parts[1:2] == ["services"] else parts)
    if (ROOT / path).with_suffix(".py").is_file():
        return str(path.parent)
    if not (ROOT / path / "__init__.py").is_file():
        return None
    door = str(path / "__init__.py")
    return door if door in DOORS else str(path)


def imported_by(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the place of each import, also of those in functions and for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [place_of(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found = [place_of(f"{module}.{alias.name}") or place_of(module) for alias in node.names]
        else:
            continue
        yield from ((node.lineno, place) for place in found if place is not None)


@cache
def imports() -> Places:
    """Return the imports between folders."""
    edges: dict[str, dict[str, str]] = {}
    files = (each for top in ("tidemill", "services") for each in (ROOT / top).rglob("*.py*"))
    for path in sorted(each for each in files if each.suffix in (".py", ".pyi")):
        name = str(path.relative_to(ROOT)).removesuffix("i")
        own = edges.setdefault(name if name in DOORS else str(Path(name).parent), {})
        for line, place in imported_by(ast.parse(path.read_text(encoding="utf-8"))):
            own.setdefault(place, f"{name}:{line}")
    return {place: {other: where for other, where in own.items() if other != place} for place, own in edges.items()}


def reached(edges: Places) -> dict[str, set[str]]:
    """Return all that each place imports, directly or through others."""
    found: dict[str, set[str]] = {}
    for start in edges:
        seen, rest = set[str](), list(edges[start])
        while rest:
            if (place := rest.pop()) not in seen:
                seen.add(place)
                rest += edges.get(place, {})
        found[start] = seen
    return found


def knots(edges: Places) -> list[set[str]]:
    """Return each set of places that all import each other, directly or through others."""
    below = reached(edges)
    found = {frozenset(other for other in below[place] if place in below[other]) for place in edges}
    return sorted((set(knot) for knot in found if knot), key=min)


def test_folder_imports_no_folder_that_imports_it() -> None:
    """Except in the knots that are known: a new one is cut, and one that is gone is removed from the list."""
    edges = imports()
    found = knots(edges)
    cuts = [
        f"{place} -> {other} ({where})"
        for knot in found
        for place in sorted(knot)
        for other, where in edges[place].items()
        if other in knot
    ]
    assert found == KNOTS, "\n".join(cuts)


def test_library_imports_no_service() -> None:
    """`tidemill` holds what several services need. Its door to replay finds `Server` by name, for who asks for it."""
    found = {
        (place, other)
        for place, others in imports().items()
        for other in others
        if place.startswith("tidemill") and other.startswith("services")
    }
    assert found == {("tidemill/replay/__init__.py", "services/replay")}


def test_knot_is_found_through_others() -> None:
    """Three folders in a ring are one knot, and a folder that only imports them is in none."""
    ring = {"a": {"b": ""}, "b": {"c": ""}, "c": {"a": ""}, "top": {"a": ""}, "low": {}}
    assert knots(ring) == [{"a", "b", "c"}]


def test_imports_in_functions_and_for_types_count() -> None:
    """A folder that needs another only at times needs it."""
    lazy = "if TYPE_CHECKING:\n    from tidemill.rpc.server import Health\ndef f():\n    import tidemill.config.load\n"
    assert [place for _, place in imported_by(ast.parse(lazy))] == ["tidemill/rpc", "tidemill/config"]
