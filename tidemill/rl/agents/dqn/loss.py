"""Meaning of the K numbers that a network gives for each action, and their targets."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.losses import ItemLoss, categorical, quantile_huber_loss, quantile_target, td_item_loss


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

    def mean(self, output: Tensor) -> Tensor:
        """Return Q, [...]."""
        return output.mean(dim=-1)

    def loss(
        self, chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
    ) -> ItemLoss:
        """Return the quantile Huber loss against R + discount * each quantile of Z(s', a')."""
        target = quantile_target(n_step_return, bootstrap_discount, bootstrap_q)
        return quantile_huber_loss(chosen_q, target, threshold=1.0)


def build_value_head(config: DQNConfig, device: torch.device) -> ValueHead:
    """Return the representation that the settings ask for."""
    if config.distribution == "c51":
        return CategoricalHead(categorical.atoms(config.value_min, config.value_max, config.atoms, device))
    if config.distribution == "qr":
        return QuantileHead()
    return ScalarHead(huber=config.loss == "huber")


def gather_argmax(output: Tensor, chooser_q: Tensor) -> Tensor:
    """Return the numbers of the action of largest `chooser_q` [B, A], [B, K], of a network's output [B, A, K].

    With the target network's own Q it is Q-learning, with the online network's double Q-learning (van Hasselt et al.
    2016, eq. 4).
    """
    return gather_action(output, chooser_q.argmax(dim=1))


def gather_action(output: Tensor, action: Tensor) -> Tensor:
    """Return the numbers of one action of each item, [B, K], of a network's output [B, A, K]."""
    index = action[:, None, None].expand(-1, 1, output.shape[2])
    return output.gather(1, index).squeeze(1)
