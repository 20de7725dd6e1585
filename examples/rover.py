"""A rover that sees its field from above and reads its battery: an observation of an image and a vector."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_PIXELS = 6  # of a cell's side
_CELLS = 6
_MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Rover(gymnasium.Env[dict[str, Any], np.int64]):
    """Drives to a mark before the battery is empty.

    Observation: `field`, bytes [36, 36], the rover at 255 and the mark at 128; `battery`, what is left of it, 0 to 1.
    Actions: right, left, down, up. Reward: 1 at the mark, -0.02 for each other step.
    """

    def __init__(self, charge: int = 30) -> None:
        """Set the steps that the battery lasts."""
        side = _CELLS * _PIXELS
        field, battery = spaces.Box(0, 255, (side, side), np.uint8), spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({"field": field, "battery": battery})
        self.action_space = spaces.Discrete(len(_MOVES))
        self._charge = self._left = charge
        self._rover = self._mark = np.zeros(2, np.int64)

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put the rover and the mark on different cells."""
        super().reset(seed=seed, options=options)
        cells = self.np_random.choice(_CELLS**2, 2, replace=False)
        self._rover, self._mark = (np.array(divmod(int(cell), _CELLS)) for cell in cells)
        self._left = self._charge
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move by one cell; the field has a fence."""
        self._rover = np.clip(self._rover + _MOVES[action], 0, _CELLS - 1)
        self._left -= 1
        arrived = bool((self._rover == self._mark).all())
        return self._observation(), 1.0 if arrived else -0.02, arrived or not self._left, False, {}

    def _observation(self) -> dict[str, Any]:
        cells = np.zeros((_CELLS, _CELLS), np.uint8)
        cells[tuple(self._mark)] = 128
        cells[tuple(self._rover)] = 255
        field = cells.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1)
        return {"field": field, "battery": np.array([self._left / self._charge], np.float32)}
