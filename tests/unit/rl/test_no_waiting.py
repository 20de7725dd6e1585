"""An update never has the host wait for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.batches import CASES, DISTINCT_CASES, sampled_batch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import EnvSpec

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten._unique2.default,
}
"""Operations that give the host a number or a shape that only the device knows."""

every_agent = pytest.mark.parametrize("config,env_spec", DISTINCT_CASES.values(), ids=DISTINCT_CASES.keys())


class NoWaiting(TorchDispatchMode):
    """Fails at an operation that waits on a GPU, on any device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Run `func` unless it waits."""
        waits = func in WAITING
        if func is torch.ops.aten.index.Tensor:  # counts what a mask holds
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        assert not waits, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def test_reading_a_number_counts_as_waiting() -> None:
    """What the next test relies on: `item`, a condition on a tensor, and indexing by a mask are all noticed."""
    numbers = torch.arange(3)
    for read in (lambda: numbers.sum().item(), lambda: bool(numbers[1] > 0), lambda: numbers[numbers > 0]):
        with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
            read()


@every_agent
def test_update_reads_nothing_from_the_device(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Neither the first update nor one that moves targets asks for a number; `target_kl` alone cannot do without."""
    if isinstance(config, PPOConfig):
        config = replace(config, target_kl=0.0)
    agent = build_agent(config, env_spec, seed=1)
    batch = sampled_batch(agent, config, env_spec, 4, torch.Generator().manual_seed(0))
    weight = torch.ones(4)
    with NoWaiting():
        for _ in range(6):
            agent.update(batch, weight)


@pytest.mark.requires_cuda  # torch watches for waiting on CUDA alone
def test_update_on_a_gpu_does_not_wait() -> None:
    """CUDA's own watch over synchronisation stays silent for every agent, after the first updates load kernels."""
    for config, env_spec in CASES.values():
        if isinstance(config, PPOConfig):
            config = replace(config, target_kl=0.0)  # noqa: PLW2901
        agent = build_agent(config, env_spec, "cuda", seed=1)
        batch = sampled_batch(agent, config, env_spec, 4, torch.Generator().manual_seed(0))
        batch = {name: tensor.cuda() for name, tensor in batch.items()}
        weight = torch.ones(4, device="cuda")
        for _ in range(2):
            agent.update(batch, weight)
        try:
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(6):
                agent.update(batch, weight)
        finally:
            torch.cuda.set_sync_debug_mode("default")
