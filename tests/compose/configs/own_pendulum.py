"""A pendulum in a module beside the config, which needs a package that the images do not hold by themselves."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import gymnasium


def make(**settings: Any) -> gymnasium.Env[Any, Any]:  # noqa: ANN401 - of gymnasium's render_mode
    """Return gymnasium's pendulum, if the package is there."""
    assert version("colorama")
    return gymnasium.make("Pendulum-v1", **settings)
