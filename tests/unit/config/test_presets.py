"""A preset is a file of `configs`, called by its name wherever Tidemill is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.load import load
from tidemill.config.presets import find_config, preset_names
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError

_CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def test_every_config_is_a_preset() -> None:
    """None is left out of the package."""
    assert preset_names() == sorted(path.stem for path in _CONFIGS.glob("*.yaml"))


def test_preset_is_found_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory needs no folder `configs`."""
    monkeypatch.chdir(tmp_path)
    assert find_config("quickstart").read_bytes() == (_CONFIGS / "quickstart.yaml").read_bytes()
    config = load(RunConfig, ["--config", "pendulum_sac"], prog="p", description="d")
    assert config.env.id == "Pendulum-v1"


def test_file_comes_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that very name in the working directory is meant."""
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("run: {name: mine}")
    assert find_config("quickstart") == Path("quickstart")


def test_mistyped_preset_names_the_nearest() -> None:
    """And one that resembles none names the command that lists them."""
    with pytest.raises(ConfigError, match=naming("'pendulum_sac'")):
        find_config("pendulum_sack")
    with pytest.raises(ConfigError, match=naming("tidemill configs")):
        find_config("zzz")
