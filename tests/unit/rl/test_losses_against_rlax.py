"""Losses against an independent implementation: numbers that rlax gave for the same random batches.

`tests/oracles/rlax_losses.py` says how the file was made.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles import rlax_losses_file
from tidemill.rl.agents.dqn import gather_action, gather_argmax
from tidemill.rl.agents.dqn_heads import (
    CategoricalHead,
    QuantileHead,
    ScalarHead,
    ValueHead,
    build_value_head,
)
from tidemill.rl.agents.r2d2 import sequence_target
from tidemill.rl.losses import ItemLoss, generalized_advantage, rescale, unscale, vtrace
from tidemill.rl.sequences import SequenceShape, unroll_targets
from tidemill.rl.settings.q_learning import DQNConfig


def oracle(name: str) -> dict[str, Any]:
    """Return one batch and its results as float64 tensors, integers and booleans as they are."""
    batch: dict[str, Any] = json.loads(rlax_losses_file().read_text())[name]
    return {
        key: torch.tensor(value, dtype=None if key in ("action", "best") else torch.float64)
        for key, value in batch.items()
    }


def item_loss(values: ValueHead, batch: dict[str, Tensor], selector_q: Tensor) -> ItemLoss:
    """Return the loss of the action taken against the target network's numbers for the selector's best."""
    following = gather_argmax(batch["target_output"], selector_q)
    taken = gather_action(batch["output"], batch["action"])
    return values.loss(taken, batch["n_step_return"], batch["bootstrap_discount"], following)


def test_double_q_learning() -> None:
    """Squared TD errors, and their absolute values as priorities."""
    batch = oracle("double_q")
    batch |= {name: batch[name].unsqueeze(-1) for name in ("output", "target_output")}
    item = item_loss(ScalarHead(huber=False), batch, batch["selector_q"])
    torch.testing.assert_close(item.loss, 0.5 * batch["td_error"].square())
    torch.testing.assert_close(item.priority, batch["td_error"].abs())


def test_categorical_double_q_learning() -> None:
    """Cross entropy with the projected distribution, terminations and values beyond the atoms included."""
    batch = oracle("categorical")
    item = item_loss(CategoricalHead(batch["support"]), batch, batch["selector_q"])
    torch.testing.assert_close(item.loss, batch["loss"])


def test_quantile_q_learning() -> None:
    """The quantile Huber loss, the action chosen by the mean of the target's quantiles."""
    batch, values = oracle("quantile"), QuantileHead()
    item = item_loss(values, batch, values.mean(batch["target_output"]))
    torch.testing.assert_close(item.loss, batch["loss"])


def test_rescaled_n_step_double_q_learning_over_sequences() -> None:
    """R2D2's targets, with episodes that end inside, for all steps whose n rewards lie within the sequence."""
    batch = oracle("rescaled_sequences")
    n_step, steps = int(batch["n_step"]), batch["reward"].shape[1]
    shape = SequenceShape(frame_stack=1, burn_in=0, unroll=steps - n_step + 1, n_step=n_step)
    rows = {"reward": batch["reward"].numpy(), "terminated": (batch["discount"] == 0.0).numpy()}
    target = unroll_targets(rows | {"truncated": rows["terminated"] & False}, shape, gamma=0.9)
    # rlax counts what follows step 0 as the first entry of target_q; a window's row 0 is the step itself
    following = batch["target_q"].gather(2, batch["best"].unsqueeze(-1)).squeeze(-1)
    following = following.gather(1, torch.from_numpy(target.bootstrap) - 1)
    return_, discount = torch.from_numpy(target.return_).double(), torch.from_numpy(target.discount).double()
    found = sequence_target(return_, discount, following, rescaled=True)
    taken = batch["q"].gather(2, batch["action"].unsqueeze(-1)).squeeze(-1)[:, : shape.unroll]
    torch.testing.assert_close(found - taken, batch["td_error"][:, : shape.unroll], rtol=1e-5, atol=1e-6)


def test_value_rescaling() -> None:
    """The signed hyperbolic transform, and back."""
    batch = oracle("rescaling")
    torch.testing.assert_close(rescale(batch["value"]), batch["rescaled"])
    torch.testing.assert_close(unscale(batch["rescaled"]), batch["value"])


@pytest.mark.parametrize("distribution", ["none", "c51", "qr"])
def test_settings_build_the_values_compared_here(distribution: str) -> None:
    """So that what agents use is what was compared."""
    kind = {"none": ScalarHead, "c51": CategoricalHead, "qr": QuantileHead}[distribution]
    config = DQNConfig(distribution=distribution)  # type: ignore[arg-type]
    assert type(build_value_head(config, torch.device("cpu"))) is kind


def test_v_trace_and_generalized_advantages() -> None:
    """Targets and advantages of sequences with ratios on both sides of the bounds, terminations included."""
    batch = {name: column.T for name, column in oracle("rollouts").items()}
    continues = torch.ones_like(batch["reward"], dtype=torch.bool)
    columns = (batch["reward"], batch["discount"], continues, batch["value"], batch["next_value"])
    found = vtrace(batch["log_ratio"], *columns, decay=0.9)
    torch.testing.assert_close(found.target - batch["value"], batch["errors"])
    torch.testing.assert_close(generalized_advantage(*columns, 0.8).advantage, batch["gae"])
    torch.testing.assert_close(found.advantage, batch["pg_advantage"])
