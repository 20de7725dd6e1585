"""Checks of what environments return; every message names the environment and the step."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import EnvFailed

FAILURES = (Exception, SystemExit)
"""What an environment may raise: a simulator that gives up may ask for the end of the process, which is not its own."""

BOOLS = (bool, np.bool_)
"""What `terminated` and `truncated` usually are."""


def check_finite(
    observation: NDArray[Any], reward: NDArray[np.floating[Any]], lengths: NDArray[np.int64], name: str = "observation"
) -> None:
    """Raise EnvFailed if any environment returned NaN or infinity, which would poison the networks.

    Args:
        observation: [N, ...].
        reward: [N].
        lengths: Agent decisions of each episode so far, [N].
        name: What the observation is called in messages.
    """
    for what, rows in ((name, observation), ("reward", reward)):
        if rows.dtype != np.uint8 and not np.isfinite(rows).all():
            index = next(i for i, row in enumerate(rows) if not np.isfinite(row).all())
            found = f"returned a non-finite {what}: {_described(rows[index])}"
            raise EnvFailed(f"{place(index, lengths[index])} {found}; allowed: finite numbers", index=index)


def as_float32(reward: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rewards in the dtype that is stored; one that is too large for it becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return reward.astype(np.float32)


def failed(
    message: str,
    error: BaseException | None = None,
    *,
    index: int | None = None,
    returned: Any = None,  # noqa: ANN401 - the user's
) -> EnvFailed:
    """Return the failure of an environment.

    Args:
        message: What it did, and where.
        error: What it raised, or what reading its answer did.
        index: Which of the batch it is; None for the whole batch.
        returned: Its answer; None if it raised.
    """
    if error is None:
        return EnvFailed(message, index=index)
    trace = "".join(traceback.format_exception(error))
    return EnvFailed(message, kind="raised" if returned is None else "invalid", index=index, trace=trace)


_STEP, _RESET = "observation, reward, terminated, truncated, info", "observation, info"


def fault(
    returned: Any,  # noqa: ANN401 - the user's
    *,
    reset: bool,
    error: BaseException | None = None,
    batched: bool = False,
) -> str:
    """Return the fault of a result or exception of an environment's `step` or `reset`; empty if it has none.

    Args:
        returned: What it returned; None if it raised.
        reset: Whether it was asked to reset.
        error: What it raised, or what reading its answer did.
        batched: Whether it is a vector environment, with an array of rewards.
    """
    method, wanted = ("reset", _RESET) if reset else ("step", _STEP)
    if returned is None and error is not None:
        return _raised(error, reset=reset)
    allowed = f"allowed since Gym 0.26 and in gymnasium: {wanted}"
    if not isinstance(returned, tuple) or len(returned) != wanted.count(",") + 1:
        found = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        return f"returned {found} from {method}, {allowed}"
    if not isinstance(returned[-1], Mapping):
        return f"returned {returned[-1]!r} as the info of {method}, allowed: a dict"
    if not (reset or batched or _is_number(returned[1])):
        return f"returned the reward {_shown(returned[1])}, allowed: a number"
    for name, flag in () if reset else zip(("terminated", "truncated"), returned[2:4], strict=True):
        if not (is_flags(flag) if batched else is_flag(flag)):
            return f"returned {name} {_shown(flag)}, allowed: {'an array of bool' if batched else 'True or False'}"
    return "" if error is None else _raised(error, reset=reset)


def is_flag(value: Any) -> bool:  # noqa: ANN401
    """True if a value is a boolean, or a scalar 0 or 1. NumPy would take any non-empty text for true."""
    return isinstance(value, bool) or (getattr(value, "shape", ()) == () and value in (0, 1))


def is_flags(values: Any) -> bool:  # noqa: ANN401
    """True if every value of an array is a boolean, 0 or 1."""
    array = np.asarray(values)
    return array.dtype.kind in "biuf" and bool(np.isin(array, (0, 1)).all())


def _is_number(value: Any) -> bool:  # noqa: ANN401
    if getattr(value, "shape", ()) != ():
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str)


def _shown(value: Any) -> str:  # noqa: ANN401
    shape = getattr(value, "shape", None)
    return f"of shape {tuple(shape)}" if shape else repr(value)


def _raised(error: BaseException, *, reset: bool) -> str:
    """Return a description of an exception and the place where it was raised."""
    message = " ".join(str(error).split())
    said = f"raised {type(error).__name__}" + (f": {message}" if message else "")
    if reset and isinstance(error, TypeError) and "'seed'" in str(error):
        return f"{said}; its reset must take the arguments seed and options (Gym before 0.26 had none)"
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (f for f in reversed(frames) if "site-packages" not in f.filename and f.filename.endswith(".py")), None
    )
    ours = Path(__file__).parent
    if place is None or ours in Path(place.filename).parents:
        return said
    return f"{said} ({Path(place.filename).name}, line {place.lineno})"


def place(index: int, step: int) -> str:
    """Return a description of the step that went wrong; step 0 is the reset."""
    return f"environment {index} at step {step} of its episode"


_SHOWN_NUMBERS = 8


def _described(value: NDArray[Any]) -> str:
    """Return a value in one line; of a large array only which of its numbers is wrong."""
    if value.size <= _SHOWN_NUMBERS and value.ndim <= 1:
        return str(value)
    wrong = np.argwhere(~np.isfinite(value))
    first = tuple(wrong[0].tolist())
    return f"{value[first]} at {list(first)}, {len(wrong)} of {value.size} numbers"
