"""Search space of a sweep: the settings that vary, by their dotted names, and their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemill.errors import ConfigError
from tidemill.settings.check import nearest
from tidemill.settings.overlay import plain

Values = dict[str, Any]
"""A value for each setting that varies, by its dotted name."""

_RANGES = ("uniform", "log", "int", "log_int")
_EXAMPLE = "a list of values, or one of uniform, log, int and log_int with [low, high], such as {log: [1e-5, 1e-2]}"


@dataclass(frozen=True)
class Parameter:
    """One setting that varies.

    Attributes:
        name: Its dotted name, such as `agent.learning_rate`.
        kind: `choice`, or how values lie between low and high: `uniform`, `log`, `int`, `log_int`, the last two whole.
        values: The choices, or (low, high), both included.
    """

    name: str
    kind: str
    values: tuple[Any, ...]

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.kind in ("int", "log_int")

    @property
    def is_log(self) -> bool:
        """Whether the logarithm is uniform."""
        return self.kind in ("log", "log_int")

    def draw(self, rng: np.random.Generator) -> Any:  # noqa: ANN401 - what the setting takes
        """Return a random value."""
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "int":
            return int(rng.integers(low, high + 1))
        if self.kind == "uniform":
            return float(rng.uniform(low, high))
        # Whole numbers get the share of the logarithmic axis between their halves.
        edge = 0.5 if self.is_whole else 0.0
        value = math.exp(rng.uniform(math.log(low - edge), math.log(high + edge)))
        return int(np.clip(round(value), low, high)) if self.is_whole else float(np.clip(value, low, high))


def parse_space(document: object) -> tuple[Parameter, ...]:
    """Return the parameters that the section `space` of a sweep describes.

    Raises:
        ConfigError: It is not a mapping of dotted names, or a value is not allowed; the message names it.
    """
    if not isinstance(document, Mapping) or not document:
        raise ConfigError(f"space is {document!r}, allowed: a mapping from settings to {_EXAMPLE}")
    return tuple(_parse(str(name), values) for name, values in document.items())


def grid(parameters: Sequence[Parameter]) -> Iterator[Values]:
    """Yield every combination of choices, the last parameter's changing first.

    Raises:
        ConfigError: A parameter is a range.
    """
    for parameter in parameters:
        if parameter.kind != "choice":
            raise ConfigError(f"space.{parameter.name} is a range; method: grid takes lists of values only")
    names = [parameter.name for parameter in parameters]
    for values in itertools.product(*(parameter.values for parameter in parameters)):
        yield dict(zip(names, values, strict=True))


def draw(parameters: Sequence[Parameter], seed: int, number: int) -> Values:
    """Return the random values of a trial; the same for the same seed and number, whatever was drawn before."""
    rng = np.random.default_rng([seed, number])
    return {parameter.name: parameter.draw(rng) for parameter in parameters}


def _parse(name: str, values: object) -> Parameter:
    if isinstance(values, list) and values:
        return Parameter(name, "choice", tuple(plain(values, f"space.{name}")))
    if not isinstance(values, Mapping) or len(values) != 1:
        raise ConfigError(f"space.{name} is {values!r}, allowed: {_EXAMPLE}")
    kind, bounds = next(iter(values.items()))
    if kind not in _RANGES:
        raise ConfigError(f"space.{name} is {values!r}, allowed: {_EXAMPLE}{nearest(str(kind), _RANGES)}")
    return Parameter(name, kind, _bounds(name, kind, bounds))


def _bounds(name: str, kind: str, bounds: object) -> tuple[float, float]:
    try:
        low, high = map(float, bounds if isinstance(bounds, list) else ())  # YAML reads 1e-5 as text
    except (TypeError, ValueError) as error:
        raise ConfigError(f"space.{name}.{kind} is {bounds!r}, allowed: [low, high]") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"space.{name}.{kind} is {bounds!r}, allowed: a low that is less than the high")
    if kind in ("log", "log_int") and low <= 0:
        raise ConfigError(f"space.{name}.{kind} is {bounds!r}, allowed: more than 0, for the logarithm")
    if kind in ("int", "log_int"):
        if low != int(low) or high != int(high):
            raise ConfigError(f"space.{name}.{kind} is {bounds!r}, allowed: whole numbers")
        return int(low), int(high)
    return low, high
