"""Names of bundles on the Hub, without the Hub."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.bundle.hub import local_folder, open_repository
from tidemill.errors import ConfigError


@pytest.mark.parametrize("path", ["runs/quickstart", "/tmp/hf", "hf", Path("a/b"), "C:/x"])
def test_a_path_stays_a_path(path: str | Path) -> None:
    """Whatever does not begin with hf:// is one."""
    assert local_folder(path) == Path(path)


@pytest.mark.parametrize("source", ["hf://", "hf://cart", "hf://me/cart/x", "hf://../x", "hf://me/c t", "hf://@main"])
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
