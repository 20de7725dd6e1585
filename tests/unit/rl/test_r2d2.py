"""R2D2: its LSTM, its targets and its priorities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.batches import IMAGE, SMALL_R2D2, VECTOR, policy_input, random_batch
from tidemill.rl import losses
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.r2d2 import R2D2Agent, R2D2Policy, sequence_loss, sequence_target
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.networks.layers import lstm
from tidemill.rl.networks.layers.lstm import LSTM
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.settings.q_learning import R2D2Config
from tidemill.types import EnvSpec

CPU = torch.device("cpu")


def test_lstm_equals_torchs_where_nothing_is_reset() -> None:
    """The same weights give the same outputs and state; torch orders its gates alike and has two biases."""
    own = LSTM(3, 5, torch.Generator().manual_seed(0))
    other = torch.nn.LSTM(3, 5)
    other.load_state_dict(
        {
            "weight_ih_l0": own.input_weight.detach(),
            "weight_hh_l0": own.output_weight.detach(),
            "bias_ih_l0": own.bias.detach(),
            "bias_hh_l0": torch.zeros(20),
        }
    )
    rng = torch.Generator().manual_seed(1)
    x, state = torch.randn((7, 2, 3), generator=rng), (torch.randn((2, 5), generator=rng),) * 2
    found, (output, cell) = own(x, torch.zeros((7, 2), dtype=torch.bool), state)
    expected, (last, last_cell) = other(x, tuple(part[None] for part in state))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(output, last[0])
    torch.testing.assert_close(cell, last_cell[0])


def test_lstm_starts_anew_where_an_episode_does() -> None:
    """After a reset at step 3 of one item nothing of its past shows, and the other item continues."""
    lstm = LSTM(3, 4, torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(1)
    x, state = torch.randn((6, 2, 3), generator=rng), (torch.randn((2, 4), generator=rng),) * 2
    is_first = torch.zeros((6, 2), dtype=torch.bool)
    is_first[3, 0] = True
    whole, _ = lstm(x, is_first, state)
    fresh, _ = lstm(x[3:], torch.zeros((3, 2), dtype=torch.bool), (torch.zeros((2, 4)),) * 2)
    on, _ = lstm(x, torch.zeros_like(is_first), state)
    torch.testing.assert_close(whole[3:, 0], fresh[:, 0])
    torch.testing.assert_close(whole[:, 1], on[:, 1])
    assert not torch.allclose(whole[3:, 0], on[3:, 0])


@pytest.mark.parametrize("pair", [False, True])
def test_steps_together_equal_steps_that_torch_differentiates(pair: bool) -> None:
    """Outputs, state and gradients, with resets at the first step, in between and twice; a fixed LSTM gets none."""
    rng, size, shape = torch.Generator().manual_seed(0), 5, (9, 4)
    gates, other = torch.randn((2, *shape, 4 * size), generator=rng)
    weight, other_weight = torch.randn((2, 4 * size, size), generator=rng) / size**0.5
    is_first = torch.rand(shape, generator=rng) < 0.3
    is_first[0, 1] = is_first[3, 2] = is_first[4, 2] = True
    state = torch.randn((2, *((2,) if pair else ()), shape[1], size), generator=rng)
    fixed = (other, other_weight) if pair else None
    found = []
    for steps in (lstm.unrolled, lstm._traced):
        inputs = [each.clone().requires_grad_() for each in (gates, weight, *(() if pair else state))]
        output, cell = state if pair else inputs[2:]
        outputs, after = steps(inputs[0], inputs[1], is_first, (output, cell), fixed)
        cell = after[1] if isinstance(after, tuple) else after
        loss = (outputs.tanh() * torch.linspace(-1, 1, outputs[0].numel()).view_as(outputs[0])).sum()
        loss = loss if pair else loss + cell.square().sum()
        found.append([outputs, cell, *torch.autograd.grad(loss, inputs)])
    for own, expected in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-5)


def test_value_rescaling_by_hand_and_back() -> None:
    """h(3) = 2 - 1 + .003, h(-8) = -(3 - 1) - .008, h(0) = 0; the inverse gives each back, large and small."""
    value = torch.tensor([3.0, -8.0, 0.0])
    torch.testing.assert_close(losses.rescale(value), torch.tensor([1.003, -2.008, 0.0]))
    wide = torch.tensor([1e-4, -0.5, 7.0, 400.0, -1e5], dtype=torch.float64)
    torch.testing.assert_close(losses.unscale(losses.rescale(wide)), wide)
    single = wide.float()
    torch.testing.assert_close(losses.unscale(losses.rescale(single)), single, rtol=1e-4, atol=2e-7)


def test_sequence_target_by_hand() -> None:
    """h(1 + .5 * h^-1(1.003)) = h(2.5); after a termination h(1), whatever the bootstrap value is."""
    target = sequence_target(
        torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.0]]), torch.tensor([[1.003, math.nan]]), rescaled=True
    )
    expected = [[math.sqrt(3.5) - 1 + 0.0025, math.sqrt(2) - 1 + 0.001]]
    torch.testing.assert_close(target, torch.tensor(expected))
    plain = sequence_target(torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([[3.0]]), rescaled=False)
    torch.testing.assert_close(plain, torch.tensor([[2.5]]))


def test_sequence_loss_and_priority_by_hand() -> None:
    """Errors 1, -3 and one that does not count: loss .5 + 4.5, priority .9 * 3 + .1 * 2."""
    item = sequence_loss(
        torch.tensor([[1.0], [0.0], [9.0]]),
        torch.tensor([[0.0], [3.0], [0.0]]),
        torch.tensor([[True], [True], [False]]),
        priority_mix=0.9,
    )
    torch.testing.assert_close(item.loss, torch.tensor([5.0]))
    torch.testing.assert_close(item.priority, torch.tensor([2.9]))


def play(policy: R2D2Policy, env_spec: EnvSpec, rows: int, num_envs: int, seed: int) -> dict[str, NDArray[Any]]:
    """Return `rows` steps of made-up environments as an actor hands them on, each column [rows, num_envs, ...]."""
    rng = np.random.default_rng(seed)
    input_builder = PolicyInputBuilder(num_envs, env_spec, policy.recurrent_state_size)
    steps: list[dict[str, NDArray[Any]]] = []
    is_first, ended = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
    reward: NDArray[np.float32] | None = None
    plain = EnvSpec(env_spec.observation_shape, env_spec.observation_dtype, num_actions=env_spec.num_actions)
    for number in range(rows):
        seen = random_batch(plain, num_envs, torch.Generator().manual_seed(seed * 1000 + number))["observation"].numpy()
        policy_input = input_builder.build(seen, is_first, reward)
        output = policy.act(policy_input, 0)
        input_builder.record(output)
        final = ended  # this row's action is ignored
        reward = np.where(final, 0.0, rng.normal(size=num_envs)).astype(np.float32)
        terminated, truncated = (~final & (rng.random(num_envs) < 0.08) for _ in range(2))
        row = {
            "observation": seen,
            "action": output.action,
            "reward": reward,
            "recurrent_state": policy_input.recurrent_state,
        }
        row |= {"terminated": terminated, "truncated": truncated & ~terminated, "is_first": is_first}
        steps.append(row | output.priority_inputs | {"is_reset_step": final})
        ended, is_first = terminated | truncated, final
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


@pytest.mark.parametrize("rescaling", [True, False])
@pytest.mark.parametrize("env_spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_actors_initial_priority_equals_the_learners(env_spec: EnvSpec, rescaling: bool) -> None:
    """On the same parameters, from the stored memory, and with ends of episodes inside the sequences."""
    network = "mlp" if env_spec is VECTOR else "nature"
    config = R2D2Config(network=network, value_rescaling=rescaling, **SMALL_R2D2)
    agent, num_envs = R2D2Agent(config, env_spec, CPU, seed=0), 40
    policy = R2D2Policy(config, env_spec, PolicyContext(CPU, 1, ActorSlot(num_envs=num_envs)))
    policy.load(agent.policy_state())
    history, length = agent.window.history, agent.window.length
    steps = play(policy, env_spec, rows=20 + length, num_envs=num_envs, seed=3)
    start = 20  # in the middle of episodes, each with its recurrent state
    window = slice(start, start + length - history)
    priority = policy.initial_priority({name: column[window] for name, column in steps.items()})
    rows = {name: column.swapaxes(0, 1).reshape(-1, *column.shape[2:]) for name, column in steps.items()}
    index = np.arange(num_envs)[:, None] * len(steps["reward"]) + np.arange(start - history, window.stop)
    batch = {name: torch.from_numpy(array) for name, array in agent.decode(rows, index).items()}
    batch["recurrent_state"] = torch.from_numpy(steps["recurrent_state"][start])
    assert bool(batch["is_first"][:, 1:].any()), "some episode ends inside"
    assert bool((~batch["is_trained"]).any()), "some row is a final one"
    learned = agent.update(batch, torch.ones(num_envs)).priority.numpy()
    np.testing.assert_allclose(priority, learned, rtol=1e-3, atol=1e-4)
    assert learned.std() > 0.01


def test_policy_in_bfloat16_remembers_and_values_in_float32() -> None:
    """Only what comes before the LSTM is short: values differ a little, recurrent states have their full format."""
    config = R2D2Config(network="nature", **SMALL_R2D2)
    state = R2D2Agent(config, IMAGE, CPU, seed=0).policy_state()
    decisions = []
    for precision in ("float32", "bfloat16"):
        policy = R2D2Policy(config, IMAGE, PolicyContext(CPU, 1, ActorSlot(num_envs=4), precision))
        policy.load(state)
        images = random_batch(IMAGE, 4, torch.Generator().manual_seed(0))["observation"].numpy()
        decisions.append(policy.act(policy_input(images, np.ones(4, np.bool_), policy.recurrent_state_size), 0))
    exact, short = decisions
    assert short.recurrent_state is not None
    assert short.recurrent_state.dtype == np.float32
    np.testing.assert_allclose(short.priority_inputs["best"], exact.priority_inputs["best"], atol=0.02)
    assert not np.array_equal(short.priority_inputs["best"], exact.priority_inputs["best"])
