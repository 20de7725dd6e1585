"""A real inference service inside the test's process, with parameters that the test sets."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from torch import Tensor

from tests.support.free_ports import free_address
from tidemill.inference.wire import Opening
from tidemill.params.blob import pack
from tidemill.params.version import Params, ParamsMetadata, Precision, Version
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInput, PolicyInputBuilder
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.forward_thread import ForwardThread
from tidemill.services.inference.metrics import Metrics
from tidemill.services.inference.servicer import InferenceServicer
from tidemill.types import EnvSpec


class FixedParams:
    """Stands in for a `ParamsWatcher`: has the parameters that it is given."""

    def __init__(self) -> None:
        """Have none."""
        self._changed = threading.Condition()
        self._params: Params | None = None

    def set(self, state: dict[str, Tensor], number: int = 1, env_steps: int = 0, algorithm: str = "") -> None:
        """Have parameters from now on."""
        with self._changed:
            self._params = params_of(state, number, env_steps, algorithm)
            self._changed.notify_all()

    def newest(self) -> Params | None:
        """Return them."""
        return self._params

    def wait(self, timeout_s: float, *, newer_than: int = 0) -> Params | None:
        """Wait for some."""
        with self._changed:
            self._changed.wait_for(lambda: self._params is not None and self._params.number > newer_than, timeout_s)
            return self._params


def params_of(state: dict[str, Tensor], number: int = 1, env_steps: int = 0, algorithm: str = "") -> Params:
    """Return parameters as a version."""
    metadata = ParamsMetadata(algorithm, learner_steps=10 * number, env_steps=env_steps)
    created = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
    blob = pack({name: np.asarray(tensor) for name, tensor in state.items()})
    return Params(Version(number, number - 1, 1, created, metadata, ()), Precision.FULL, blob)


@dataclass(frozen=True)
class LocalInference:
    """The service, with its parts at hand."""

    address: str
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the service, 0 when it was never touched."""
        return self.registry.get_sample_value(f"tidemill_inference_{name}", labels) or 0.0


def state_of(config: AgentConfig, spec: EnvSpec, seed: int = 7) -> dict[str, Tensor]:
    """Return parameters of an algorithm, as a learner publishes them."""
    return build_agent(config, spec, seed=seed).policy_state()


@contextmanager
def local_inference(
    config: AgentConfig,
    spec: EnvSpec,
    params: FixedParams,
    *,
    address: str = "",
    max_batch: int = 64,
    max_wait_s: float = 60.0,
    max_streams: int = 8,
) -> Iterator[LocalInference]:
    """Serve an algorithm, on a free port unless an address is given."""
    policy = build_policy(config, spec, slot=ActorSlot(num_envs=max_batch))
    errors: list[BaseException] = []
    registry = CollectorRegistry()
    metrics, device, watcher = Metrics(registry), torch.device("cpu"), _watcher(params)
    forward = ForwardThread(policy, watcher, Batcher(max_batch, max_wait_s), metrics, errors.append)
    served = Opening(config.algorithm, max_batch, spec, policy.recurrent_state_size)
    try:
        with BackgroundServer("inference", ServerSettings(address or free_address(), grace_s=0.2)) as background:
            servicer = InferenceServicer(served, forward, device, metrics, max_batch=max_batch, max_streams=max_streams)
            servicer.add_to(background.server)
            yield LocalInference(background.start(), registry)
    finally:
        forward.close()
    assert not errors, errors


def _watcher(params: FixedParams) -> Any:  # noqa: ANN401 - a stand-in
    return params


class Played:
    """The inputs of N environments in which everything is drawn: observations, ends, rewards and masks."""

    def __init__(self, spec: EnvSpec, num_envs: int, recurrent_state_size: int, seed: int = 3) -> None:
        """Begin."""
        self._spec, self._num_envs = spec, num_envs
        self.builder = PolicyInputBuilder(num_envs, spec, recurrent_state_size)
        """Takes what the policy chose."""
        self._rng, self._begun = np.random.default_rng(seed), False

    def next(self) -> PolicyInput:
        """Return the next input."""
        spec, count, rng = self._spec, self._num_envs, self._rng
        shape = (count, *spec.observation_shape)
        observation: NDArray[Any] = rng.normal(size=shape).astype(np.float32)
        if spec.observation_dtype == "uint8":
            observation = rng.integers(256, size=shape, dtype=np.uint8)
        is_first = rng.random(count) < 0.2 if self._begun else np.ones(count, np.bool_)
        self._begun = True
        mask = None
        if spec.masks_actions:
            mask = rng.random((count, sum(spec.action_options))) < 0.7
            mask[:, 0] = True
        return self.builder.build(observation, is_first, rng.normal(size=count).astype(np.float32), mask)
