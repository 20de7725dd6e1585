"""Reasons: every error of a service whose status code has several causes names one, and a test provokes each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tidemill.errors import Reason
from tidemill.rpc.v1 import reason_pb2

_ROOT = Path(__file__).resolve().parents[3]
_SERVED = [
    *sorted((_ROOT / "services" / "replay").rglob("*.py")),
    *sorted((_ROOT / "services" / "paramserver").rglob("*.py")),
    *sorted((_ROOT / "services" / "inference").rglob("*.py")),
    *sorted((_ROOT / "services" / "learner" / "status").rglob("*.py")),
    _ROOT / "services" / "learner" / "servicer.py",
    _ROOT / "services" / "learner" / "checkpoint" / "store.py",
    _ROOT / "tidemill" / "rpc" / "open_calls.py",
]
_OWNERS = {"__main__.py", "embedded.py"}  # told to who runs the process, not to a caller
_AMBIGUOUS = {"FailedPrecondition", "ResourceExhausted", "Unavailable", "NotFound"}


def _raised(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _AMBIGUOUS:
            yield node


def test_reasons_are_those_of_the_contract() -> None:
    """The enum in Python has the names that the proto defines."""
    assert [reason.value for reason in Reason] == reason_pb2.Reason.keys()[1:]


def test_every_ambiguous_error_of_a_service_names_its_reason() -> None:
    """A client would have to read the message."""
    calls = [(path, call) for path in _SERVED if path.name not in _OWNERS for call in _raised(path)]
    assert len(calls) > 40
    missing = [
        f"{path.relative_to(_ROOT)}:{call.lineno}"
        for path, call in calls
        if "reason" not in {keyword.arg for keyword in call.keywords}
    ]
    assert not missing


def test_every_reason_is_provoked_by_a_test() -> None:
    """Each stands in the expectation of at least one."""
    tests = "\n".join(path.read_text() for path in (_ROOT / "tests").rglob("test_*.py"))
    assert [reason.name for reason in Reason if f"Reason.{reason.name}" not in tests] == []
