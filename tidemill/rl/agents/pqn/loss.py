"""The targets and the loss of PQN, as pure functions of tensors (Gallici et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from tidemill.rl.losses import assert_rank, generalized_advantage, mask_illegal


def lambda_target(
    q: Tensor, legal: Tensor | None, reward: Tensor, discount: Tensor, continues: Tensor, decay: float
) -> Tensor:
    """Return R_t = r_t + discount_t * (lambda * R_t+1 + (1 - lambda) * max over a of Q(s_t+1, a)), [T, B].

    Where the episode ends, or the rollout, the maximum stands in for R_t+1. It is the target of
    generalized advantages with that maximum as the value.

    Args:
        q: Values of every action of all T + 1 steps, [T + 1, B, A].
        legal: Which of them may be chosen, bool [T + 1, B, A]; None: all.
        reward: r_t, [T, B].
        discount: gamma, or 0 where step t terminated, [T, B].
        continues: Whether step t + 1 belongs to the episode of step t, bool [T, B].
        decay: Lambda, 0 to 1.
    """
    assert_rank(3, q=q)
    value = mask_illegal(q, legal).amax(dim=2)
    return generalized_advantage(reward, discount, continues, value[:-1], value[1:], decay).target


def q_loss(chosen_q: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of half the squared errors, []; 0 where no weight is.

    Args:
        chosen_q: Values of the actions taken, [M].
        target: What they are to be, without a gradient, [M].
        weight: 0 for a step that is not trained on, [M].
    """
    assert_rank(1, chosen_q=chosen_q, target=target, weight=weight)
    return (0.5 * weight * (chosen_q - target).square()).sum() / weight.sum().clamp(min=1.0)
