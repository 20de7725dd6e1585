"""Adam against torch's own, however gradients lie in memory."""

from __future__ import annotations

import pytest
import torch

from tests.support.batches import random_batch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.optimizers import Adam
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec

_ORDERS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("of_gradient", _ORDERS)
@pytest.mark.parametrize("of_parameter", _ORDERS)
def test_gradient_in_another_order_of_memory_is_the_same_gradient(
    of_parameter: torch.memory_format, of_gradient: torch.memory_format
) -> None:
    """Channels last in memory or not, a gradient moves a parameter as its copy in the parameter's order does."""
    rng = torch.Generator().manual_seed(0)
    start = torch.randn((2, 3, 2, 2), generator=rng)
    own, other = start.clone(memory_format=of_parameter), torch.nn.Parameter(start.clone())
    optimizer = Adam([own], 0.1, epsilon=1e-2, weight_decay=0.1)
    reference = torch.optim.Adam([other], 0.1, eps=1e-2, weight_decay=0.1)
    for _ in range(3):
        gradient = torch.randn((2, 3, 2, 2), generator=rng)
        optimizer.step([gradient.to(memory_format=of_gradient)])
        other.grad = gradient
        reference.step()
    torch.testing.assert_close(own, other.detach())


def test_update_does_not_depend_on_how_colour_images_lie_in_memory() -> None:
    """Without a stack they reach the first convolution colours last, and its gradient comes back in that order."""
    config = DQNConfig(network="impala", hidden_sizes=(16,), update_precision="float32", optimizer_epsilon=1e-2)
    spec = EnvSpec((9, 12, 3), "uint8", frame_stack=1, num_actions=4)
    colours_last = random_batch(spec, 4, torch.Generator().manual_seed(0))
    colours_first = {
        name: tensor.movedim(-1, 1).contiguous().movedim(1, -1) if tensor.ndim == 4 else tensor
        for name, tensor in colours_last.items()
    }
    agents = [build_agent(config, spec, seed=1) for _ in range(2)]
    for agent, batch in zip(agents, (colours_last, colours_first), strict=True):
        agent.update(batch, torch.ones(4))
    left, right = (agent.policy_state() for agent in agents)
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], msg=name)
