"""Trial of a user's algorithm before a run starts: both sides are built, act once and make one update."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tidemill.arrays import Array
from tidemill.errors import ConfigError, described
from tidemill.rl.agents.blank_batch import blank_batch
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import Agent, Policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInputBuilder, PolicyOutput, check_extras
from tidemill.rl.process_group import SINGLE_PROCESS
from tidemill.rl.settings.registry import ALGORITHMS, AgentConfig, extra_columns_of
from tidemill.rl.state_tree import copied_to_cpu, flatten, unflatten
from tidemill.types import EnvSpec

_NUM_ENVS = 2
_OURS = Path(__file__).parents[2]


def try_algorithm(
    config: AgentConfig, env_spec: EnvSpec, *, with_update: bool = True, with_priority: bool = False
) -> Policy | None:
    """Build an agent, and of an algorithm that is the user's try the methods that actors and the learner call.

    An agent of the project tries a user's networks and loss when it is built.

    Args:
        config: The algorithm's settings.
        env_spec: Shapes of the environment.
        with_update: Whether to make an update, on the CPU, from a batch of the size in the settings: zeros, and
            the algorithm's own columns as the policy filled them.
        with_priority: Whether to compute initial priorities, which only a prioritized table has.

    Returns:
        The policy of a user's algorithm; None for one of the project's, whose settings say what its policy can do.

    Raises:
        ConfigError: A method failed, or returned what cannot be used; the message names the method.
    """
    if config.algorithm in ALGORITHMS:
        build_agent(config, env_spec)
        return None
    with _calling(config, "build_agent"):
        agent = build_agent(config, env_spec)
    with _calling(config, "build_policy"):
        policy = build_policy(config, env_spec, slot=ActorSlot(num_envs=_NUM_ENVS))
    _check_sides(config, env_spec, agent, policy)
    _try_parameters(config, agent, policy)
    _check_finite(config, "state_dict", _try_state(config, agent))
    _check_copies(config, agent)
    output = _try_acting(config, env_spec, policy, evaluation=False)
    _try_acting(config, env_spec, policy, evaluation=True)
    if with_priority:
        _try_priority(config, env_spec, policy, output.priority_inputs)
    with _calling(config, "set_process_group"):
        agent.set_process_group(SINGLE_PROCESS)
    if with_update:
        _try_update(config, env_spec, agent, {name: column[0] for name, column in output.extras.items()})
        _try_state(config, agent)  # with what the update has added
    return policy


def updates_on_cpu(device: str) -> bool:
    """Return True if `learner.device` has a learner on this machine compute on the CPU; `auto` may take a GPU."""
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())


def _check_sides(config: AgentConfig, env_spec: EnvSpec, agent: Agent, policy: Policy) -> None:
    """Raise ConfigError unless agent and policy agree with each other and with their settings."""
    with _calling(config, "recurrent_state_size"):
        sizes = agent.recurrent_state_size, policy.recurrent_state_size
    if sizes[0] != sizes[1]:
        raise _wrong(config, f"agent has recurrent_state_size {sizes[0]}, must be that of its policy: {sizes[1]}")
    with _calling(config, "window"):
        given, wanted = agent.window, config.window(env_spec.frame_stack)
        differs = (given.history, given.steps) != (wanted.history, wanted.steps)
    if differs:
        raise _wrong(config, f"agent has the window {given}, must be that of its settings: {wanted}")


def _try_parameters(config: AgentConfig, agent: Agent, policy: Policy) -> None:
    with _calling(config, "policy_state"):
        state = agent.policy_state()
        returned: Mapping[str, object] = state
        for name, value in returned.items():
            if not isinstance(value, Tensor) or value.requires_grad:
                raise _wrong(config, f"policy_state returned {_shown(value)} as {name!r}, must be a detached tensor")
    _check_finite(config, "policy_state", state)
    with _calling(config, "load (of what policy_state returned)"):
        policy.load(state)


def _try_state(config: AgentConfig, agent: Agent) -> dict[str, Tensor]:
    """Have an agent load its own state as a checkpoint brings it back; return the tensors by path."""
    with _calling(config, "state_dict"):
        document, tensors = flatten(copied_to_cpu(agent.state_dict()))
    with _calling(config, "load_state_dict (of what state_dict returned)"):
        agent.load_state_dict(unflatten(document, tensors))
    return tensors


def _check_copies(config: AgentConfig, agent: Agent) -> None:
    """Raise ConfigError for parameters that the next update would change while they are being published."""
    # kept until the end, so that no copy gets their memory
    published = [agent.policy_state() for _ in range(2)]  # it may take two in turn
    own = [value for state in (flatten(agent.state_dict())[1], *published) for value in state.values()]
    kept = {tensor.untyped_storage().data_ptr() for tensor in own}
    for name, value in agent.policy_state().items():
        if value.numel() and value.untyped_storage().data_ptr() in kept:
            found = f"policy_state returned {name!r} in memory that the agent keeps"
            raise _wrong(config, f"{found}, must be a copy: .detach().clone()")


def _check_finite(config: AgentConfig, method: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for numbers that the learner would take for divergence."""
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise _wrong(config, f"{method} returned a tensor {name!r} that is not finite, which ends training")


def _try_acting(config: AgentConfig, env_spec: EnvSpec, policy: Policy, *, evaluation: bool) -> PolicyOutput:
    inputs = PolicyInputBuilder(_NUM_ENVS, env_spec, policy.recurrent_state_size)
    observation = np.zeros((_NUM_ENVS, *env_spec.observation_shape), env_spec.observation_dtype)
    mask = np.ones((_NUM_ENVS, sum(env_spec.action_options)), np.bool_) if env_spec.masks_actions else None
    seen = inputs.build(observation, np.ones(_NUM_ENVS, np.bool_), action_mask=mask)
    call = f"act (for {_NUM_ENVS} environments)"
    with _calling(config, call):
        output: object = policy.act(seen, evaluation=evaluation)
        if not isinstance(output, PolicyOutput):
            raise _wrong(config, f"{call} returned {_shown(output)}, must be a tidemill.PolicyOutput")
        if not evaluation:
            check_extras(output.extras, extra_columns_of(config, env_spec), _NUM_ENVS)
    action_shape, state_shape = (_NUM_ENVS, *env_spec.action_shape), (_NUM_ENVS, policy.recurrent_state_size)
    if not _fits(output.action, env_spec.action_dtype, action_shape, "same_kind"):  # as it is converted when stored
        wanted = f"{env_spec.action_dtype} {action_shape}"
        raise _wrong(config, f"{call} returned {_shown(output.action)} as action, must be a NumPy array: {wanted}")
    if policy.recurrent_state_size and not _fits(output.recurrent_state, "float32", state_shape, "no"):
        found = f"{call} returned {_shown(output.recurrent_state)} as recurrent_state"
        raise _wrong(config, f"{found}, must be a NumPy array: float32 {state_shape}")
    return output


def _try_priority(config: AgentConfig, env_spec: EnvSpec, policy: Policy, inputs: Mapping[str, Array]) -> None:
    rows = config.window(env_spec.frame_stack).steps + 1
    steps: dict[str, Array] = {"reward": np.zeros((rows, _NUM_ENVS), np.float32)}
    steps |= {name: np.zeros((rows, _NUM_ENVS), np.bool_) for name in ("terminated", "truncated", "is_reset_step")}
    call = f"initial_priority (of {_NUM_ENVS} windows)"
    with _calling(config, call):
        steps |= {name: np.stack([column] * rows) for name, column in inputs.items()}
        priority = policy.initial_priority(steps)
    if not _fits(priority, "float32", (_NUM_ENVS,), "same_kind"):
        raise _wrong(config, f"{call} returned {_shown(priority)}, must be a NumPy array: float32 ({_NUM_ENVS},)")


def _fits(array: object, dtype: str, shape: tuple[int, ...], casting: Literal["no", "same_kind"]) -> bool:
    return isinstance(array, np.ndarray) and array.shape == shape and np.can_cast(array.dtype, dtype, casting)


def _try_update(config: AgentConfig, env_spec: EnvSpec, agent: Agent, extras: Mapping[str, Array]) -> None:
    items = config.batch_size
    with _calling(config, "decode"):
        batch = blank_batch(agent, config, env_spec, items, extras)
    call = f"update (with {items} items of zeros)"
    with _calling(config, call):
        update = agent.update(batch, torch.ones(items))
        priority: object = update.priority
        metrics: Mapping[str, object] = update.metrics
    if not isinstance(priority, Tensor) or priority.shape != (items,) or priority.requires_grad:
        raise _wrong(config, f"{call} returned {_shown(priority)} as priority, must be a detached tensor ({items},)")
    if not isinstance(metrics, Mapping):
        raise _wrong(config, f"{call} returned {_shown(metrics)} as metrics, must be a dict of scalar tensors by name")
    for name, value in metrics.items():
        if not isinstance(value, Tensor) or value.shape != ():
            raise _wrong(config, f"{call} returned {_shown(value)} as metric {name!r}, must be a scalar tensor: ()")


@contextlib.contextmanager
def _calling(config: AgentConfig, what: str) -> Iterator[None]:
    """Have an error name the algorithm's method, and the line of the user's code that raised it."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise _wrong(config, f"{what} failed: {described(error)}{_place(error)}") from error


def _wrong(config: AgentConfig, found: str) -> ConfigError:
    return ConfigError(f"agent.algorithm is {config.algorithm!r}, whose {found}")


def _place(error: Exception) -> str:
    """Return the newest line of a traceback that is neither the project's nor of an installed package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and _OURS not in Path(f.filename).parents]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _shown(value: object) -> str:
    """Return type and shape of an array, with what is attached to a tensor; anything else as its type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}{' with a gradient' if value.requires_grad else ''}"
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
