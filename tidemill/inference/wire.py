"""Messages of the inference service: inputs and outputs of a policy as bytes, and every size checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.inference.v1 import inference_pb2 as pb
from tidemill.rl.policy_io import PolicyInput
from tidemill.types import EnvSpec

_MAX_SEED = 2**64
_MOST_DIMENSIONS = 64  # of a shape, as of NumPy's


@dataclass(frozen=True)
class Opening:
    """Description of an actor, which fixes the size of every later message.

    Attributes:
        algorithm: Name of its algorithm.
        num_envs: N, the environments of every step.
        spec: Shapes of one environment; of them only what the network's input needs is on the wire.
        recurrent_state_size: M, numbers of one environment's recurrent state.
        noise_seed: Seed of a noisy network's noise.
    """

    algorithm: str
    num_envs: int
    spec: EnvSpec
    recurrent_state_size: int = 0
    noise_seed: int = 0

    @property
    def shape(self) -> dict[str, object]:
        """Everything that an actor and its service must agree on, by name."""
        spec = self.spec
        return {
            "algorithm": self.algorithm,
            "observation_shape": spec.observation_shape,
            "observation_dtype": spec.observation_dtype,
            "frame_stack": spec.frame_stack,
            "num_actions": spec.num_actions,
            "action_shape": spec.action_shape,
            "recurrent_state_size": self.recurrent_state_size,
        }


class Seen(NamedTuple):
    """One step as it came.

    Attributes:
        observation: [N, ...] or, if `is_whole`, stacks [N, frame_stack, ...].
        is_whole: Whether nothing that came before is needed.
        is_first: Whether each observation is the first of its episode, bool [N].
        last_action: [N, ...]; zeros without a recurrent state.
        last_reward: float32 [N]; zeros without a recurrent state.
        recurrent_state: float32 [N, M]; None: what was answered last.
    """

    observation: Array
    is_whole: bool
    is_first: NDArray[np.bool_]
    last_action: Array
    last_reward: NDArray[np.float32]
    recurrent_state: NDArray[np.float32] | None


class Answer(NamedTuple):
    """Output of the network for one step.

    Attributes:
        params_version: Version of the parameters.
        env_steps: Agent decisions of the cluster when they were published.
        learner_steps: Updates behind them.
        arrays: What `SplitPolicy.forward` returned, float32 [N, ...] each.
    """

    params_version: int
    env_steps: int
    learner_steps: int
    arrays: dict[str, NDArray[np.float32]]


def pack_open(opening: Opening) -> pb.ActRequest:
    """Return the first message of a call."""
    spec = opening.spec
    return pb.ActRequest(
        open=pb.ActOpen(
            algorithm=opening.algorithm,
            num_envs=opening.num_envs,
            observation_shape=spec.observation_shape,
            observation_dtype=spec.observation_dtype,
            frame_stack=spec.frame_stack,
            num_actions=spec.num_actions,
            action_shape=spec.action_shape,
            recurrent_state_size=opening.recurrent_state_size,
            noise_seed=opening.noise_seed % _MAX_SEED,
        )
    )


def unpack_open(request: pb.ActRequest) -> Opening:
    """Return the contents of the first message of a call; only its kind and the lengths of its shapes are checked.

    Raises:
        InvalidArgument: It is not an `open`, or a shape in it is too long.
    """
    if request.WhichOneof("message") != "open":
        raise InvalidArgument("the first message of a call must be `open`")
    message = request.open
    for name in ("observation_shape", "action_shape"):
        if (length := len(getattr(message, name))) > _MOST_DIMENSIONS:
            raise InvalidArgument(f"open.{name} has {length} entries, allowed: at most {_MOST_DIMENSIONS}")
    spec = EnvSpec(
        observation_shape=tuple(message.observation_shape),
        observation_dtype=message.observation_dtype,
        frame_stack=message.frame_stack,
        num_actions=message.num_actions,
        action_shape=tuple(message.action_shape),
    )
    return Opening(message.algorithm, message.num_envs, spec, message.recurrent_state_size, message.noise_seed)


def pack_step(policy_input: PolicyInput, frame_stack: int, *, whole: bool) -> pb.ActRequest:
    """Return the message of one step.

    Args:
        policy_input: What the policy sees.
        frame_stack: Observations it sees at once.
        whole: Whether the stacks and the recurrent state go along, and not the newest observations alone.
    """
    observation = policy_input.observation
    step = pb.ActStep(is_first=policy_input.is_first.tobytes())
    if whole:
        step.stacks = observation.tobytes()
    else:
        step.newest = (observation if frame_stack == 1 else observation[:, -1]).tobytes()
    if policy_input.recurrent_state.shape[1]:
        step.last_action, step.last_reward = policy_input.last_action.tobytes(), policy_input.last_reward.tobytes()
        if whole:
            step.recurrent_state = policy_input.recurrent_state.tobytes()
    return pb.ActRequest(step=step)


def unpack_step(request: pb.ActRequest, opening: Opening) -> Seen:
    """Return the step of a message.

    Raises:
        InvalidArgument: It is not a step, or a field has another size than `opening` gives it.
    """
    if request.WhichOneof("message") != "step":
        raise InvalidArgument("after `open`, a call holds only steps")
    step, spec, count = request.step, opening.spec, opening.num_envs
    is_whole = step.WhichOneof("seen") == "stacks"
    stack = (spec.frame_stack,) if is_whole and spec.frame_stack > 1 else ()
    field, data = ("stacks", step.stacks) if is_whole else ("newest", step.newest)
    observation = _array(field, data, spec.observation_dtype, (count, *stack, *spec.observation_shape))
    is_first = _array("is_first", step.is_first, np.uint8, (count,)) != 0
    size = opening.recurrent_state_size
    actions, rewards = (count, *spec.action_shape), (count,)
    if not size:
        for name in ("last_action", "last_reward", "recurrent_state"):
            _none(name, getattr(step, name))
        action, reward = np.zeros(actions, spec.action_dtype), np.zeros(rewards, np.float32)
        return Seen(observation, is_whole, is_first, action, reward, np.zeros((count, 0), np.float32))
    action = _array("last_action", step.last_action, spec.action_dtype, actions)
    reward = _array("last_reward", step.last_reward, np.float32, rewards)
    state = None
    if step.recurrent_state or is_whole:
        state = _array("recurrent_state", step.recurrent_state, np.float32, (count, size))
    return Seen(observation, is_whole, is_first, action, reward, state)


def pack_answer(answer: Answer) -> pb.ActResponse:
    """Return the message of an answer."""
    arrays = [
        pb.OutputArray(name=name, shape=array.shape[1:], data=array.tobytes()) for name, array in answer.arrays.items()
    ]
    return pb.ActResponse(
        params_version=answer.params_version,
        env_steps=answer.env_steps,
        learner_steps=answer.learner_steps,
        arrays=arrays,
    )


def unpack_answer(response: pb.ActResponse, num_envs: int) -> Answer:
    """Return the answer for `num_envs` environments that a message holds.

    Raises:
        InvalidArgument: An array has another size than its shape says.
    """
    arrays = {
        array.name: _array(array.name, array.data, np.float32, (num_envs, *array.shape)) for array in response.arrays
    }
    return Answer(response.params_version, response.env_steps, response.learner_steps, arrays)


def agreement(mine: Opening, theirs: Opening) -> Iterable[str]:
    """Yield how an actor's opening differs from what the service acts for; nothing if it does not."""
    for name, own in mine.shape.items():
        if own != (other := theirs.shape[name]):
            yield f"{name} is {other!r}, this service's is {own!r}"


def _array(field: str, data: bytes, dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
    """Return a copy of the array that bytes hold, which may be written to."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != size:
        raise InvalidArgument(f"{field} has {len(data)} bytes, must be {size}: {np.dtype(dtype)} {list(shape)}")
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _none(field: str, data: bytes) -> None:
    if data:
        raise InvalidArgument(f"{field} has {len(data)} bytes, must be empty without a recurrent state")
