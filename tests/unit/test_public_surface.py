"""The public surface: what `tidemill` lists exists, is documented, and is imported only when it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tests.support.naming import naming
from tidemill import replay

_NAMES = [name for name in tidemill.__all__ if name != "__version__"]
_ARRAYS = ("ndarray", "NDArray", "Tensor")


def _public_callables(name: str) -> list[tuple[str, object]]:
    """Return a public name and, of a class, its public methods, each with its dotted name."""
    value = getattr(tidemill, name)
    if not inspect.isclass(value):
        return [(name, value)] if inspect.isfunction(value) else []
    methods = [
        (f"{name}.{key}", member)
        for key, member in vars(value).items()
        if not key.startswith("_") and inspect.isfunction(member)
    ]
    return [(name, value), *methods]


def test_listed_name_is_found() -> None:
    """What the stub lists is what `dir` shows, and each name is there."""
    assert set(dir(tidemill)) == set(tidemill.__all__)
    for name in _NAMES:
        assert getattr(tidemill, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match=naming("'Nothing'")):
        getattr(tidemill, "Nothing")  # noqa: B009 - a name that type checkers refuse


@pytest.mark.parametrize("name", _NAMES)
def test_public_name_has_a_docstring(name: str) -> None:
    """So has each public method of a class; one that takes or returns arrays says their shapes."""
    for dotted, value in _public_callables(name):
        documentation = inspect.getdoc(value) or ""
        assert len(documentation) > 15, dotted
        if inspect.isfunction(value):
            annotations = " ".join(str(kind) for kind in value.__annotations__.values())
            if any(kind in annotations for kind in _ARRAYS):
                assert "[" in documentation or "`" in documentation, f"{dotted} does not say the shape of its arrays"


def test_client_says_which_errors_its_calls_raise() -> None:
    """Each method, or the class for all of them; closing and looking at what is known raise nothing."""
    silent = {"close", "shards", "newest", "result", "start", "stop", "wait_for_ready", "poll", "output"}
    for name in ("ReplayClient", "ParamsClient", "LearnerClient", "ReplaySampler", "Cluster"):
        about = inspect.getdoc(getattr(tidemill, name)) or ""
        for dotted, value in _public_callables(name)[1:]:
            text = inspect.getdoc(value) or ""
            named = "Raises:" in text or "raises" in text or any(error in text for error in ("NotFound", "Unavailable"))
            assert named or "raises" in about or dotted.split(".")[1] in silent, dotted


def test_import_needs_neither_torch_nor_grpc() -> None:
    """A program that imports the package pays only for what it uses."""
    code = "import sys, tidemill; print([m for m in ('torch', 'grpc', 'gymnasium', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_replay_alone_imports_little() -> None:
    """`tidemill.replay` itself nothing; its writer and dataset NumPy and gRPC, but not what only servers need."""
    heavy = "('torch', 'structlog', 'rich', 'yaml', 'prometheus_client', 'gymnasium')"
    for names, allowed in (("*", "('numpy', 'grpc')"), ("ReplayWriter, ReplayDataset, ReplayClient", "()")):
        what = "import tidemill.replay" if names == "*" else f"from tidemill.replay import {names}"
        code = f"import sys; {what}; print([m for m in (*{heavy}, *{allowed}) if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout.strip() == "[]", names


def test_front_door_of_replay_agrees_with_itself() -> None:
    """What it lists is there, and is what `tidemill` has by the same name."""
    assert set(replay.__all__) == set(dir(replay))
    assert set(replay.__all__) - set(tidemill.__all__) == {"Server"}  # a name that needs its module to say of what
    for name in set(replay.__all__) - {"Server"}:
        assert getattr(replay, name) is getattr(tidemill, name)
    with pytest.raises(AttributeError, match=naming("'Nothing'")):
        getattr(replay, "Nothing")  # noqa: B009 - a name that type checkers refuse


def test_version_is_that_of_the_distribution() -> None:
    """pyproject.toml and the package say the same."""
    text = (Path(tidemill.__file__).parents[1] / "pyproject.toml").read_text()
    assert f'version = "{tidemill.__version__}"' in text
