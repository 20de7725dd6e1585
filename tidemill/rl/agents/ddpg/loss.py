"""The losses of DDPG, as pure functions of tensors; the critic's own is `tidemill.rl.losses.td_loss`."""

from __future__ import annotations

from torch import Tensor

from tidemill.rl.losses import assert_rank


def td_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor) -> Tensor:
    """Return R + discount * Q'(s', mu'(s')), [B], without a gradient (Lillicrap et al. 2016, eq. 5).

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: The target critic's value of the target actor's action, [B].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount, bootstrap_q=bootstrap_q)
    return (n_step_return + bootstrap_discount * bootstrap_q).detach()


def actor_loss(q: Tensor) -> Tensor:
    """Return -mean Q(s, mu(s)), []: its gradient is the deterministic policy gradient (ibid., eq. 6).

    Args:
        q: The critic's values of the actor's actions, [B]; only the actor's parameters may follow the gradient.
    """
    assert_rank(1, q=q)
    return -q.mean()
