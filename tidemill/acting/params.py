"""Published parameters, taken by a policy of whoever acts."""

from __future__ import annotations

import torch

from tidemill.errors import FatalError
from tidemill.params.blob import unpack
from tidemill.rl.agents.interface import Policy


def load_params(policy: Policy, blob: bytes, number: int, algorithm: str = "") -> None:
    """Have a policy take the parameters of a version.

    Args:
        policy: Takes them.
        blob: The parameters, see `unpack`.
        number: The version's number.
        algorithm: The algorithm that made them; empty if it is not known.

    Raises:
        FatalError: They are those of another network.
    """
    state = {name: torch.from_numpy(value) for name, value in unpack(blob).items()}
    try:
        policy.load(state)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # the device's errors, whatever the parameters are
        raise
    except (RuntimeError, KeyError) as error:
        made_by = f" of {algorithm}" if algorithm else ""
        why = " ".join(str(error).split())
        raise FatalError(
            f"version {number}{made_by} does not fit agent.*; use the settings it was trained with: {why}"
        ) from error
