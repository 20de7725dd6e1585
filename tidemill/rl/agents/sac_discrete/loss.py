"""The losses of discrete SAC (Christodoulou 2019), as pure functions of tensors.

Each takes the logarithm of the policy's probabilities, [B, A], which is hugely negative, but finite, where an action is
not legal. The critics' own is `tidemill.rl.losses.twin_td_loss`.
"""

from __future__ import annotations

from torch import Tensor

from tidemill.rl.losses import assert_rank
from tidemill.rl.networks.actor_critic import legal_logits


def log_policy(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Return the logarithm of each action's probability, [B, A]; see `legal_logits` for those that are not legal."""
    return legal_logits(logits, legal).log_softmax(dim=-1)


def entropy(log_prob: Tensor) -> Tensor:
    """Return the policy's entropy in nats, [B]."""
    assert_rank(2, log_prob=log_prob)
    return -(log_prob.exp() * log_prob).sum(dim=1)


def soft_target(
    n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor, log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """Return R + discount * sum over a' of pi(a'|s') (min of both Q(s', a') - temperature * log pi(a'|s')), [B].

    It is the target of ibid., eq. 10, without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: Both target critics' values of every action, [2, B, A].
        log_prob: Of every action, [B, A].
        temperature: Weight of the entropy, [].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    assert_rank(3, bootstrap_q=bootstrap_q)
    value = (log_prob.exp() * bootstrap_q.amin(dim=0)).sum(dim=1) + temperature * entropy(log_prob)
    return (n_step_return + bootstrap_discount * value).detach()


def actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean of sum over a of pi(a|s) (temperature * log pi(a|s) - min of both Q(s, a)), [] (ibid., eq. 12).

    Args:
        q: Both critics' values of every action, [2, B, A]; their parameters must not take part.
        log_prob: Of every action, [B, A].
        temperature: Weight of the entropy, [].
    """
    assert_rank(3, q=q)
    value = (log_prob.exp() * q.detach().amin(dim=0)).sum(dim=1)
    return (-temperature * entropy(log_prob) - value).mean()
