"""Names of bundles on the Hub, without the Hub."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.support.naming import naming
from tidemill.bundle.hub import local_folder, open_repository
from tidemill.errors import ConfigError, Unavailable


@pytest.mark.parametrize("path", ["runs/quickstart", "/tmp/hf", "hf", Path("a/b"), "C:/x"])
def test_a_path_stays_a_path(path: str | Path) -> None:
    """Whatever does not begin with hf:// is one."""
    assert local_folder(path) == Path(path)


@pytest.mark.parametrize(
    "source",
    [
        *("hf://", "hf://cart", "hf://me/cart/x", "hf://../x", "hf://me/c t", "hf://@main"),
        *("hf://me/cart--pole", "hf://me/cart..pole", "hf://me/cart.git", "hf://me/cart-", "hf://-me/cart"),
        f"hf://me/{97 * 'x'}",
    ],
)
def test_what_names_no_repository_is_refused_with_its_value(source: str) -> None:
    """And with what is allowed."""
    with pytest.raises(ConfigError, match=naming("hf://OWNER/NAME")) as raised:
        local_folder(source)
    assert str(raised.value).startswith(source)


@pytest.mark.parametrize("source", ["hf://me/cart", Path("hf://me/cart"), "hf://me/cart@v1"])
def test_without_the_package_one_line_says_what_to_install(source: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked of anybody."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=naming("'tidemill[hub]'")):
        local_folder(source)
    with pytest.raises(ConfigError, match=naming("'tidemill[hub]'")):
        open_repository("me/cart", private=False)


_ERRORS = ("LocalTokenNotFound", "LocalEntryNotFound", "RepositoryNotFound", "RevisionNotFound", "HfHubHTTP")


@pytest.mark.parametrize(
    "error, raised, words",
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError, "No space left on device"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/cache"), ConfigError, "/cache Read-only HF_HOME"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/cache"), ConfigError, "/cache denied HF_HOME"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), Unavailable, "the Hub does not answer"),
    ],
)
def test_trouble_with_the_disk_is_not_taken_for_a_silent_hub(
    error: OSError, raised: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is the command's own line; a cache that cannot be written names its setting."""
    errors = SimpleNamespace(**{f"{name}Error": type(name, (Exception,), {}) for name in _ERRORS})
    package = SimpleNamespace(errors=errors, snapshot_download=Mock(side_effect=error))
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    with pytest.raises(raised, match=naming(words)):
        local_folder("hf://me/cart")
