# ruff: noqa: ANN401 - the types of jax are not installed here
"""Makes rlax_losses.json: random batches, and what rlax, an independent implementation, says of them.

    python -m venv /tmp/rlax && /tmp/rlax/bin/pip install rlax==0.1.9 jax==0.10.2 jaxlib==0.10.2
    /tmp/rlax/bin/python -m tests.oracles.rlax_losses

rlax and jax are needed for this alone: the tests read the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from tests.oracles import rlax_losses_file

FILE = rlax_losses_file()

BATCH, ACTIONS, ATOMS, STEPS, N_STEP = 6, 4, 7, 9, 3
SUPPORT = np.linspace(-2.0, 3.0, ATOMS)


def one_step(rng: np.random.Generator, *numbers: int) -> dict[str, Any]:
    """Return a batch of transitions with outputs [B, A, *numbers] of three networks; two of them terminated."""
    shape = (BATCH, ACTIONS, *numbers)
    return {
        "output": rng.normal(size=shape),
        "action": rng.integers(ACTIONS, size=BATCH),
        "n_step_return": rng.normal(size=BATCH),
        "bootstrap_discount": np.where(np.arange(BATCH) < 2, 0.0, 0.9),
        "target_output": rng.normal(size=shape),
        "selector_q": rng.normal(size=(BATCH, ACTIONS)),
    }


def over_batch(loss: Callable[..., Any], *columns: Any) -> Any:
    """Return a loss of single items for every item of a batch."""
    return jax.vmap(loss)(*(jnp.asarray(column) for column in columns))


def double_q(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the TD error of double Q-learning."""
    names = ("output", "action", "n_step_return", "bootstrap_discount", "target_output", "selector_q")
    return {"td_error": over_batch(rlax.double_q_learning, *(batch[name] for name in names))}


def categorical(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the cross entropy of categorical double Q-learning."""

    def loss(output: Any, action: Any, reward: Any, discount: Any, target: Any, selector: Any) -> Any:
        return rlax.categorical_double_q_learning(SUPPORT, output, action, reward, discount, SUPPORT, target, selector)

    names = ("output", "action", "n_step_return", "bootstrap_discount", "target_output", "selector_q")
    return {"loss": over_batch(loss, *(batch[name] for name in names))}


def quantile(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the quantile Huber loss with threshold 1, the action chosen by the target's own means."""
    levels = (np.arange(ATOMS) + 0.5) / ATOMS

    def loss(output: Any, action: Any, reward: Any, discount: Any, target: Any) -> Any:
        # rlax has the quantiles first
        return rlax.quantile_q_learning(output.T, levels, action, reward, discount, target.T, target.T, 1.0)

    names = ("output", "action", "n_step_return", "bootstrap_discount", "target_output")
    return {"loss": over_batch(loss, *(batch[name] for name in names))}


def rescaled_sequences(rng: np.random.Generator) -> dict[str, Any]:
    """Return sequences and the TD errors of R2D2's rescaled n-step double Q-learning, [B, STEPS]."""
    discount = np.where(rng.random((BATCH, STEPS)) < 0.15, 0.0, 0.9)
    batch = {
        "q": rng.normal(size=(BATCH, STEPS, ACTIONS)),
        "action": rng.integers(ACTIONS, size=(BATCH, STEPS)),
        "target_q": rng.normal(size=(BATCH, STEPS, ACTIONS)) * 3,
        "best": rng.integers(ACTIONS, size=(BATCH, STEPS)),
        "reward": rng.normal(size=(BATCH, STEPS)),
        "discount": discount,
    }

    def loss(q: Any, action: Any, target_q: Any, best: Any, reward: Any, discount: Any) -> Any:
        pair = rlax.SIGNED_HYPERBOLIC_PAIR
        return rlax.transformed_n_step_q_learning(q, action, target_q, best, reward, discount, N_STEP, tx_pair=pair)

    return batch | {"td_error": over_batch(loss, *batch.values())}


def rollouts(rng: np.random.Generator) -> dict[str, Any]:
    """Return V-trace with ratios on both sides of its bounds, and generalized advantages, of six sequences."""
    discount = np.full((BATCH, STEPS), 0.95)
    discount[0, 3] = discount[1, STEPS - 1] = 0.0
    log_ratio = rng.normal(size=(BATCH, STEPS)) * 0.7
    reward = rng.normal(size=(BATCH, STEPS))
    values = rng.normal(size=(BATCH, STEPS + 1))
    value, following = values[:, :-1], values[:, 1:]

    def v_trace(v: Any, v_t: Any, r: Any, d: Any, rho: Any) -> Any:
        return rlax.vtrace_td_error_and_advantage(v, v_t, r, d, rho, lambda_=0.9)

    traced = over_batch(v_trace, value, following, reward, discount, np.exp(log_ratio))
    gae = over_batch(
        lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, 0.8, v), reward, discount, values
    )
    batch = {"log_ratio": log_ratio, "reward": reward, "discount": discount, "value": value, "next_value": following}
    return batch | {"errors": traced.errors, "pg_advantage": traced.pg_advantage, "gae": gae}


def main() -> None:
    """Write the file."""
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(20_261_121)
    plain, atoms, quantiles = one_step(rng), one_step(rng, ATOMS), one_step(rng, ATOMS)
    found = {
        "double_q": plain | double_q(plain),
        "categorical": atoms | categorical(atoms) | {"support": SUPPORT},
        "quantile": quantiles | quantile(quantiles),
        "rescaled_sequences": rescaled_sequences(rng) | {"n_step": N_STEP},
        "rollouts": rollouts(np.random.default_rng(20_261_123)),
        "rescaling": {"value": SUPPORT * 50, "rescaled": rlax.signed_hyperbolic(jnp.asarray(SUPPORT * 50), 1e-3)},
    }
    FILE.write_text(json.dumps(jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), found)) + "\n")


if __name__ == "__main__":
    main()
