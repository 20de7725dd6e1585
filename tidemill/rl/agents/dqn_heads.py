"""Meaning of the K numbers that DQN's network gives for each action, and their losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tidemill.errors import ConfigError, described
from tidemill.rl.losses import ItemLoss, categorical, quantile_huber_loss, quantile_target, td_item_loss
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.settings.user_code import user_object


class ValueHead(Protocol):
    """One way to represent the value of an action by K numbers."""

    def mean(self, output: Tensor) -> Tensor:
        """Return Q, [...], of a network's output [..., K]."""

    def loss(
        self, chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
    ) -> ItemLoss:
        """Return the loss of each item and its priority, which learner and actor compute alike.

        Args:
            chosen_q: The online network's output for the action taken, [B, K].
            n_step_return: Discounted sum of rewards, [B].
            bootstrap_discount: gamma**k, or 0 after termination, [B].
            bootstrap_q: The target network's output for the action chosen after step k, [B, K].
        """


class ScalarHead:
    """K = 1: the value itself; the priority is the absolute TD error."""

    def __init__(self, *, huber: bool) -> None:
        self._huber = huber

    def mean(self, output: Tensor) -> Tensor:
        """Return Q, [...]."""
        return output.squeeze(-1)

    def loss(
        self, chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
    ) -> ItemLoss:
        """Return Huber or half the squared error of R + discount * Q(s', a')."""
        target = (n_step_return + bootstrap_discount * bootstrap_q.squeeze(-1)).detach()
        return td_item_loss(chosen_q.squeeze(-1), target, huber=self._huber)


class CategoricalHead:
    """K logits over fixed atoms (Bellemare et al. 2017); the priority is the KL divergence (Hessel et al. 2018)."""

    def __init__(self, support: Tensor) -> None:
        self._support = support  # [K]

    def mean(self, output: Tensor) -> Tensor:
        """Return Q, [...]."""
        return categorical.expectation(output, self._support)

    def loss(
        self, chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
    ) -> ItemLoss:
        """Return the cross entropy with the projection of R + discount * Z(s', a')."""
        target = categorical.categorical_target(
            n_step_return, bootstrap_discount, bootstrap_q.softmax(dim=-1), self._support
        )
        return ItemLoss(categorical.cross_entropy(chosen_q, target), categorical.divergence(chosen_q, target))


class QuantileHead:
    """K quantiles (Dabney et al. 2018); the priority is the absolute error of their mean."""

    def __init__(self, level: Tensor | None = None) -> None:
        """Take which quantiles are predicted, [B, K], where they were drawn; None: those of even levels."""
        self._level = level

    def mean(self, output: Tensor) -> Tensor:
        """Return Q, [...]."""
        return output.mean(dim=-1)

    def loss(
        self, chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
    ) -> ItemLoss:
        """Return the quantile Huber loss against R + discount * each quantile of Z(s', a')."""
        target = quantile_target(n_step_return, bootstrap_discount, bootstrap_q)
        return quantile_huber_loss(chosen_q, target, threshold=1.0, level=self._level)


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A user-defined `ValueHead.loss`: from its four arguments to loss and priority of each item."""


class OwnLossHead:
    """A built-in representation with a user-defined loss."""

    def __init__(self, head: ValueHead, loss: Loss) -> None:
        self._head, self._loss = head, loss

    def mean(self, output: Tensor) -> Tensor:
        """Return Q, [...]."""
        return self._head.mean(output)

    def loss(
        self, chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
    ) -> ItemLoss:
        """Return the function's result."""
        loss, priority = self._loss(chosen_q, n_step_return, bootstrap_discount, bootstrap_q)
        return ItemLoss(loss, priority.detach())


def build_value_head(config: DQNConfig, device: torch.device) -> ValueHead:
    """Return the representation that the settings ask for, with their loss.

    Raises:
        ConfigError: A user-defined loss is missing, fails, or returns something invalid.
    """
    head = _build_head(config, device)
    if ":" not in config.loss:
        return head
    own = OwnLossHead(head, user_object("agent.loss", config.loss))
    _check_loss(config.loss, own, config.values_per_action, device)
    return own


def _check_loss(name: str, head: OwnLossHead, values: int, device: torch.device) -> None:
    """Raise ConfigError unless a loss returns loss and priority, each [B], and follows the predicted values."""
    predicted = torch.zeros((2, values), device=device, requires_grad=True)
    item = torch.zeros(2, device=device)
    called = f"agent.loss {name!r}, called with tensors (2, {values}), (2,), (2,) and (2, {values}),"
    try:
        with torch.enable_grad():
            loss, priority = head.loss(predicted, item, item, torch.zeros_like(predicted).detach())
        shapes = tuple(loss.shape), tuple(priority.shape)
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"{called} failed: {described(error)}") from error
    if shapes != ((2,), (2,)):
        raise ConfigError(f"{called} returned a loss {shapes[0]} and a priority {shapes[1]}, must be (2,) each: [B]")
    if not loss.requires_grad:
        raise ConfigError(f"{called} returned a loss without a gradient in its first argument, the predicted values")


def _build_head(config: DQNConfig, device: torch.device) -> ValueHead:
    if config.distribution == "c51":
        return CategoricalHead(categorical.atoms(config.value_min, config.value_max, config.atoms, device))
    if config.distribution in ("qr", "iqn"):
        return QuantileHead()
    return ScalarHead(huber=config.loss == "huber")
