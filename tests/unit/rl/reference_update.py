"""One update of each continuous agent, derived independently: NumPy, float64, loops over layers, numeric gradients.

Nothing here is shared with the agents: parameters come out of their states by name, and every formula is written
from its paper. `critic_loss` and `actor_loss` return losses as functions of one network's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Params = dict[str, Floats]
Batch = Mapping[str, Floats]


def params_of(state: Mapping[str, Any]) -> Params:
    """Return a network's parameters in float64."""
    return {name: value.detach().numpy().astype(np.float64) for name, value in state.items()}


def numeric_gradient(loss: Callable[[Params], float], params: Params, step: float = 1e-6) -> Params:
    """Return the gradient of `loss` at `params` by central differences."""
    gradient = {name: np.zeros_like(value) for name, value in params.items()}
    for name, value in params.items():
        for at in np.ndindex(value.shape):
            kept, ends = value[at], []
            for sign in (1.0, -1.0):
                value[at] = kept + sign * step
                ends.append(loss(params))
            value[at] = kept
            gradient[name][at] = (ends[0] - ends[1]) / (2.0 * step)
    return gradient


def plain_actor(params: Params, observation: Floats) -> Floats:
    """Return tanh(head(relu(hidden))) of one hidden layer."""
    hidden = np.maximum(observation @ params["hidden.0.weight"].T + params["hidden.0.bias"], 0.0)
    return np.tanh(hidden @ params["head.weight"].T + params["head.bias"])


def plain_critic(params: Params, observation: Floats, action: Floats) -> Floats:
    """Return [B, outputs] of two hidden layers; the action joins before the second."""
    first = np.maximum(observation @ params["hidden.0.weight"].T + params["hidden.0.bias"], 0.0)
    joined = np.concatenate((first, action), axis=1)
    second = np.maximum(joined @ params["hidden.1.weight"].T + params["hidden.1.bias"], 0.0)
    return second @ params["head.weight"].T + params["head.bias"]


def batched(params: Params, inputs: Floats) -> Floats:
    """Return [copies, B, outputs] of networks with one hidden layer, copy by copy."""
    outputs = []
    for copy in range(len(params["layers.0.weight"])):
        hidden = np.maximum(inputs @ params["layers.0.weight"][copy] + params["layers.0.bias"][copy], 0.0)
        outputs.append(hidden @ params["layers.1.weight"][copy] + params["layers.1.bias"][copy])
    return np.stack(outputs)


def batch_normalised(params: Params, inputs: Floats) -> Floats:
    """Return [copies, B, outputs] of networks with one hidden layer, each of whose layers normalises by the batch."""
    outputs = []
    for copy in range(len(params["layers.0.weight"])):
        hidden = inputs
        for number in range(2):
            layer = {name: params[f"layers.{number}.{name}"][copy] for name in ("weight", "bias")}
            affine = [params[f"layers.{number}.renorm.{name}"][copy] for name in ("scale", "shift")]
            normal = (hidden - hidden.mean(axis=0)) / np.sqrt(hidden.var(axis=0) + 1e-3)
            hidden = (normal * affine[0] + affine[1]) @ layer["weight"] + layer["bias"]
            hidden = np.maximum(hidden, 0.0) if number == 0 else hidden
        outputs.append(hidden)
    return np.stack(outputs)


def running_normalised(params: Params, inputs: Floats) -> Floats:
    """Return the same by the running statistics."""
    outputs = []
    for copy in range(len(params["layers.0.weight"])):
        hidden = inputs
        for number in range(2):
            own = {name: params[f"layers.{number}.{name}"][copy] for name in ("weight", "bias")}
            names = ("running_mean", "running_std", "scale", "shift")
            mean, std, scale, shift = (params[f"layers.{number}.renorm.{name}"][copy] for name in names)
            hidden = ((hidden - mean) / std * scale + shift) @ own["weight"] + own["bias"]
            hidden = np.maximum(hidden, 0.0) if number == 0 else hidden
        outputs.append(hidden)
    return np.stack(outputs)


def truncated(quantiles: Floats, dropped: int) -> Floats:
    """Return, item by item, the smallest of all critics' quantiles [C, B, K]: `dropped` fewer for each critic."""
    critics, _, count = quantiles.shape
    return np.stack([sorted(item.flatten())[: critics * (count - dropped)] for item in quantiles.transpose(1, 0, 2)])


def quantile_huber(quantiles: Floats, target: Floats, weight: Floats) -> float:
    """Return the weighted mean over items of the critics' summed losses, written out pair by pair."""
    critics, batch, count = quantiles.shape
    total = 0.0
    for critic, item, rank in np.ndindex(critics, batch, count):
        level = (2 * rank + 1) / (2 * count)
        for sample in target[item]:
            error = sample - quantiles[critic, item, rank]
            huber = 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
            total += weight[item] * abs(level - (error < 0.0)) * huber / (count * target.shape[1] * batch)
    return total


def twin_q(params: Params, observation: Floats, action: Floats) -> Floats:
    """Return both critics' values [2, B]."""
    return batched(params, np.concatenate((observation, action), axis=1))[..., 0]


def softmax(logits: Floats) -> Floats:
    """Return probabilities along the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def squashed(head: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """Return actions [B, A] and their log-densities [B] of a Gaussian squashed by tanh."""
    mean, log_std = np.split(head, 2, axis=1)
    action = np.tanh(mean + np.exp(log_std) * noise)
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    return action, (normal - np.log(1.0 - action**2)).sum(axis=1)


def td_target(batch: Batch, value: Floats) -> Floats:
    """Return R + discount * value, [B]."""
    return batch["n_step_return"] + batch["bootstrap_discount"] * value


def half_squares(q: Floats, target: Floats, weight: Floats) -> float:
    """Return the weighted mean of half the squared error; of several critics, [C, B], their sum."""
    return float((0.5 * weight * (np.atleast_2d(q) - target) ** 2).sum(axis=0).mean())


def projected(values: Floats, mass: Floats, support: Floats) -> Floats:
    """Return the mass at `values` [B, J] moved to the atoms, one value after the other."""
    spacing, result = support[1] - support[0], np.zeros((len(values), len(support)))
    for row, column in np.ndindex(values.shape):
        b = (np.clip(values[row, column], support[0], support[-1]) - support[0]) / spacing
        lower = min(int(b), len(support) - 2)
        result[row, lower] += mass[row, column] * (lower + 1 - b)
        result[row, lower + 1] += mass[row, column] * (b - lower)
    return result


def cross_entropy(logits: Floats, target: Floats) -> Floats:
    """Return the cross entropy of each item, [B]."""
    entropy: Floats = -(target * np.log(softmax(logits))).sum(axis=1)
    return entropy
