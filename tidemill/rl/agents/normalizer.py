"""The normalizers of agents: what a learner counts of observations and rewards, and what actors need of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.rl.networks.recurrent import observations_of
from tidemill.rl.normalization import CLIP, RunningMoments, Standardization, StandardizedTorso
from tidemill.rl.policy_io import PolicyInput
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.sequences import SequenceShape
from tidemill.rl.settings.base import EARLIER_RETURN, Normalizes

_PUBLISHED = "reward_std"


class Normalizer(nn.Module):
    """What a learner counts of observations and rewards; part of the state of the training."""

    def __init__(self, settings: Normalizes, networks: Iterable[nn.Module]) -> None:
        """Count as the settings say; every standardization of the networks follows what is counted of observations."""
        super().__init__()
        modules = [module for network in networks for module in network.modules()]
        # tuples: they are not modules of this one
        self._standardizations = tuple(module for module in modules if isinstance(module, Standardization))
        self._torsos = tuple(module.torso for module in modules if isinstance(module, StandardizedTorso))
        self.observations = RunningMoments(len(self._standardizations[0].mean)) if self._standardizations else None
        self.returns = RunningMoments() if settings.normalize_rewards else None
        self._gamma = settings.gamma

    @property
    def modules_by_name(self) -> dict[str, nn.Module]:
        """This, for `TrainState`, if it counts anything."""
        return {} if self.observations is None and self.returns is None else {"normalizer": self}

    def scaled(self, reward: Tensor) -> Tensor:
        """Return rewards by the standard deviation of the discounted returns, within `CLIP`; or as they are."""
        return reward if self.returns is None else (reward / self.returns.std).clamp(-CLIP, CLIP)

    def published(self) -> dict[str, Tensor]:
        """Return the standard deviation that rewards are divided by, for `ActedRewards.load`; {} without one."""
        return {} if self.returns is None else {_PUBLISHED: self.returns.std.double()}

    def count_features(self, features: Tensor, mask: Tensor, group: ProcessGroup) -> None:
        """Count features, [N, F], of which `mask`, [N], are 0 or count by a weight, and let the networks use them."""
        if self.observations is not None:
            self.observations.add(features, mask, group)
            for standardization in self._standardizations:
                standardization.take(self.observations)


class ReplayNormalizer(Normalizer):
    """Counts the batches that are drawn from a table, before each is learned from.

    A transition counts each time that it is drawn, by its importance weight: so priorities change little of what is
    counted, tables that were imported count as well, and the batches alone decide, on any rank and after a resume.
    """

    def __init__(
        self, settings: Normalizes, networks: Iterable[nn.Module], sequences: SequenceShape | None = None
    ) -> None:
        """Take how sequences are divided; None: items are single transitions."""
        super().__init__(settings, networks)
        self._unroll = None if sequences is None else slice(sequences.burn_in, sequences.burn_in + sequences.unroll)

    @torch.no_grad()
    def counted(self, batch: Mapping[str, Tensor], weight: Tensor, group: ProcessGroup) -> Mapping[str, Tensor]:
        """Count a batch of transitions, or the unrolls of sequences; return it with its rewards scaled.

        Args:
            batch: What the agent decoded, with the columns of `reward_columns` where rewards are normalized, [B], or of
                the unroll's steps, [B, U].
            weight: Importance weights, [B].
            group: The ranks, all of which call this.
        """
        mask = weight if self._unroll is None else (batch["is_trained"] * weight[:, None]).flatten()
        if self.observations is not None:
            seen = batch["observation"]
            if self._unroll is not None:
                seen = observations_of(batch)[:, self._unroll].flatten(0, 1)
            self.count_features(self._torsos[0](seen).float(), mask, group)
        if self.returns is None:
            return batch
        sums = batch["reward"] + self._gamma * batch[EARLIER_RETURN]
        self.returns.add(torch.where(mask > 0, sums.flatten(), 0.0), mask, group)
        return {**batch, "n_step_return": self.scaled(batch["n_step_return"])}


def reward_columns(settings: Normalizes) -> tuple[str, ...]:
    """Return the columns of a transition's first step that `ReplayNormalizer` counts, if rewards are normalized."""
    return ("reward", EARLIER_RETURN) if settings.normalize_rewards else ()


class ActedRewards:
    """The acting side of normalized rewards: what is stored with each step, and the scale of initial priorities."""

    def __init__(self, settings: Normalizes) -> None:
        """Scale by 1 until parameters come."""
        self._gamma = settings.gamma
        self.are_normalized = settings.normalize_rewards
        """Whether there is anything to do."""
        self._std = 1.0

    def load(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take what `Normalizer.published` put among parameters, if it is there; return the others."""
        if _PUBLISHED in state:
            self._std = float(state[_PUBLISHED])
        return {name: value for name, value in state.items() if name != _PUBLISHED}

    def extras(self, policy_input: PolicyInput) -> dict[str, NDArray[np.float32]]:
        """Return the column `EARLIER_RETURN` of a step, float32 [N], if rewards are normalized."""
        return {EARLIER_RETURN: earlier_return(policy_input, self._gamma)} if self.are_normalized else {}

    def scaled(self, n_step_return: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return discounted sums of rewards, [K], as the learner scales them."""
        if not self.are_normalized:
            return n_step_return
        scaled: NDArray[np.float32] = np.clip(n_step_return / np.float32(self._std), -CLIP, CLIP).astype(np.float32)
        return scaled


def earlier_return(policy_input: PolicyInput, gamma: float) -> NDArray[np.float32]:
    """Return the discounted sum of each episode's rewards before a step, float32 [N], from that of the step before."""
    sums = policy_input.last_extras.get(EARLIER_RETURN, np.zeros(len(policy_input), np.float32))
    moved = policy_input.last_reward + np.float32(gamma) * sums
    return np.where(policy_input.is_first, np.float32(0), moved).astype(np.float32)
