"""An optimizer's state as tensors under plain names, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tidemill.errors import InvalidArgument


def pack(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return each parameter's state tensors by the parameter's position, e.g. `{"0": {"exp_avg": ...}}`."""
    return {
        str(position): dict(optimizer.state[parameter])
        for position, parameter in enumerate(_parameters(optimizer))
        if parameter in optimizer.state
    }


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Give the optimizer copies of what `pack` returned; raises InvalidArgument on another shape."""
    parameters = _parameters(optimizer)
    optimizer.state.clear()
    for position, tensors in state.items():
        if int(position) >= len(parameters):
            raise InvalidArgument(f"optimizer state of parameter {position}, but there are only {len(parameters)}")
        parameter = parameters[int(position)]
        optimizer.state[parameter] = {name: _fitting(name, value, parameter) for name, value in tensors.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _fitting(name: str, value: Tensor, parameter: Tensor) -> Tensor:
    if value.ndim > 0 and value.shape != parameter.shape:
        raise InvalidArgument(f"optimizer state {name} of shape {tuple(value.shape)}, expected {tuple(parameter.shape)}")
    return value.detach().to(parameter.device, copy=True)
