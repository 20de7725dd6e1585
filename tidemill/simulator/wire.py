"""Messages of the simulator service: spaces, steps and actions, each checked against the spaces of the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.observation_parts import in_order, leaves, pack, stored, tuple_paths
from tidemill.settings.check import SAFE_NAME, is_safe_name
from tidemill.simulator.v1 import simulator_pb2 as pb
from tidemill.types import OBSERVATION, EnvSpec, ObservationPart


@dataclass(frozen=True)
class Declared:
    """The declarations that a client makes.

    Attributes:
        client: Its name.
        spec: Its spaces; a stack of frames is the service's.
        resume_token: Of the episode that it continues; empty for none.
    """

    client: str
    spec: EnvSpec
    resume_token: bytes = b""


@dataclass(frozen=True)
class SeenStep:
    """One step of an episode, as a client saw it.

    Attributes:
        step: Its number in the episode.
        observation: [*observation_shape]; of several parts their bytes.
        reward: Of the action before.
        terminated: Whether the episode is over.
        truncated: Whether it is cut here.
        action_mask: Whether each action is legal, bool [num_actions]; None without masks.
        reported: The action that the client takes by itself, [*action_shape]; None: the service decides.
        evaluate: Whether the episode that begins is an evaluation.
    """

    step: int
    observation: Array
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    action_mask: NDArray[np.bool_] | None = None
    reported: Array | None = None
    evaluate: bool = False


_OPEN_BYTES = 64 * 1024  # of an `open`; more where that of the run itself is longer
_MOST_ENTRIES = 4096  # of a list in an `open`; more where the run itself has more
_MOST_DIMENSIONS = 64  # of a shape, as of NumPy's


def pack_open(declared: Declared) -> pb.PlayRequest:
    """Return the first message of a call."""
    spec = declared.spec
    spaces = [pb.Space(name=name, dtype=dtype, shape=shape) for name, dtype, shape in _spaces(spec)]
    action = pb.ActionSpace(
        num_actions=spec.num_actions,
        action_sizes=spec.action_sizes,
        action_shape=() if spec.action_sizes else spec.action_shape,
        masks_actions=spec.masks_actions,
    )
    opening = pb.Open(client=declared.client, observation=spaces, action=action, resume_token=declared.resume_token)
    return pb.PlayRequest(open=opening)


def unpack_open(request: pb.PlayRequest, served: EnvSpec) -> Declared:
    """The declarations in the first message of a call, `open`.

    Args:
        request: The message.
        served: The spaces of the run.

    Raises:
        InvalidArgument: It is not an `open`, a list in it is too long, or the client's name is malformed.
    """
    if request.WhichOneof("message") != "open":
        raise InvalidArgument("the first message of a call must be `open`")
    message = request.open
    if not is_safe_name(message.client):
        raise InvalidArgument(f"open.client is {message.client[:64]!r}, allowed: {SAFE_NAME}")
    _check_lengths(message, served)
    spaces = [(space.name, space.dtype, tuple(space.shape)) for space in message.observation]
    is_single = [name for name, _, _ in spaces] == [OBSERVATION]
    action = message.action
    sizes = tuple(action.action_sizes)
    spec = EnvSpec(
        observation_shape=spaces[0][2] if is_single else (),
        observation_dtype=spaces[0][1] if is_single else "uint8",
        num_actions=action.num_actions,
        action_shape=(len(sizes),) if sizes else tuple(action.action_shape),
        masks_actions=action.masks_actions,
        action_sizes=sizes,
        observation_parts=() if is_single else tuple(ObservationPart(*space) for space in spaces),
    )
    return Declared(message.client, spec, message.resume_token)


def _check_lengths(message: pb.Open, served: EnvSpec) -> None:
    """Refuse lists of a length that no environment has, before anything is made of their entries."""
    action = message.action
    for name, entries, most in (
        ("open.observation", message.observation, max(_MOST_ENTRIES, len(served.observation_parts))),
        ("open.action.action_sizes", action.action_sizes, max(_MOST_ENTRIES, len(served.action_sizes))),
        ("open.action.action_shape", action.action_shape, _MOST_DIMENSIONS),
    ):
        _check_length(name, entries, most)
    for place, space in enumerate(message.observation):
        _check_length(f"open.observation[{place}].shape", space.shape, _MOST_DIMENSIONS)


def _check_length(name: str, entries: Sized, most: int) -> None:
    if len(entries) > most:
        raise InvalidArgument(f"{name} has {len(entries)} entries, allowed: at most {most}")


def differences(served: EnvSpec, declared: EnvSpec) -> Iterator[str]:
    """Yield how a client's spaces differ from those of the run, each by its name; nothing if they do not."""
    ours, theirs = ({name: (dtype, shape) for name, dtype, shape in _spaces(spec)} for spec in (served, declared))
    for name, (dtype, shape) in theirs.items():
        if name not in ours:
            yield f"observation {name!r} is unknown, allowed: {', '.join(map(repr, ours))}"
        elif ours[name] != (dtype, shape):
            allowed_dtype, allowed_shape = ours[name]
            yield f"observation {name!r} is {dtype} {list(shape)}, allowed: {allowed_dtype} {list(allowed_shape)}"
    missing = [name for name in ours if name not in theirs]
    if missing:
        yield f"observation lacks {', '.join(map(repr, missing))}"
    elif ours.keys() == theirs.keys() and list(ours) != list(theirs):
        yield f"observation is in the order {list(theirs)}, allowed: {list(ours)}"
    for name in ("num_actions", "action_sizes", "action_shape", "masks_actions"):
        own, other = getattr(served, name), getattr(declared, name)
        if own != other:
            yield f"{name} is {_listed(other)}, allowed: {_listed(own)}"


def pack_step(seen: SeenStep, spec: EnvSpec) -> pb.PlayRequest:
    """Return the message of a step."""
    step = pb.Step(
        step=seen.step,
        observation=_parts_of(seen.observation, spec),
        reward=seen.reward,
        terminated=seen.terminated,
        truncated=seen.truncated,
        evaluate=seen.evaluate,
    )
    if seen.action_mask is not None:
        step.action_mask = seen.action_mask.tobytes()
    if seen.reported is not None:
        step.reported.CopyFrom(pack_action(seen.reported, spec))
    return pb.PlayRequest(step=step)


def unpack_step(request: pb.PlayRequest, spec: EnvSpec) -> SeenStep:
    """Return the step of a message.

    Raises:
        InvalidArgument: It is not a step, or a field does not fit the spaces; the message names it.
    """
    if request.WhichOneof("message") != "step":
        raise InvalidArgument("after `open`, a call holds only steps")
    step = request.step
    if not math.isfinite(step.reward):
        raise InvalidArgument(f"reward is {step.reward} at step {step.step}, allowed: a finite number")
    for name in ("reward", "terminated", "truncated"):
        if not step.step and getattr(step, name):
            raise InvalidArgument(f"{name} is {getattr(step, name)} at step 0, allowed: none before an action")
    if step.evaluate and step.step:
        raise InvalidArgument(f"evaluate is set at step {step.step}, allowed: at step 0")
    is_reported = step.HasField("reported") and not step.terminated
    return SeenStep(
        step=step.step,
        observation=_unpack_observation(step.observation, spec, step.step),
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated and not step.terminated,
        action_mask=None if step.terminated else _unpack_mask(step, spec),
        reported=unpack_action(step.reported, spec) if is_reported else None,
        evaluate=step.evaluate,
    )


_MOST_EPISODES = 100_000


def check_evaluation(request: pb.EvaluateRequest, spec: EnvSpec) -> None:
    """Check a request for an evaluation.

    Raises:
        InvalidArgument: A field is out of range; the message names it.
    """
    if request.params_version < 1:
        raise InvalidArgument(f"params_version is {request.params_version}, allowed: at least 1")
    if not 1 <= request.episodes <= _MOST_EPISODES:
        raise InvalidArgument(f"episodes is {request.episodes}, allowed: 1 to {_MOST_EPISODES}")
    most = 1 if spec.is_discrete else 0
    if not 0 <= request.epsilon <= most:
        raise InvalidArgument(f"epsilon is {request.epsilon}, allowed: 0{' to 1' if most else ''}")


def pack_action(action: ArrayLike, spec: EnvSpec) -> pb.Action:
    """Return the message of an action [*action_shape]; what is beyond [-1, 1] of a continuous one is clipped."""
    array = np.asarray(action)
    if spec.action_options:
        return pb.Action(choices=array.reshape(-1).tolist())
    return pb.Action(values=np.clip(array, -1.0, 1.0).reshape(-1).tolist())


def unpack_action(message: pb.Action, spec: EnvSpec) -> Array:
    """Return the action of a message, int64 or float32 [*action_shape].

    Raises:
        InvalidArgument: It has too many or too few numbers, or one is out of range.
    """
    options = spec.action_options
    field, numbers = ("choices", message.choices) if options else ("values", message.values)
    size = len(options) if options else spec.action_size
    if len(numbers) != size or len(message.choices) + len(message.values) != size:
        found = f"{len(message.choices)} choices and {len(message.values)} values"
        raise InvalidArgument(f"action has {found}, allowed: {size} {field}")
    array = np.array(numbers, spec.action_dtype)
    for place, option in enumerate(options):
        if not 0 <= array[place] < option:
            raise InvalidArgument(f"action.choices[{place}] is {array[place]}, allowed: 0 .. {option - 1}")
    if not options and not (np.abs(array) <= 1.0).all():
        raise InvalidArgument(f"action.values are {array.tolist()[:8]}, allowed: numbers in [-1, 1]")
    return array.reshape(spec.action_shape)


def observed(observation: Any, spec: EnvSpec) -> Array:  # noqa: ANN401 - nested as the user likes
    """Return an observation as it is sent: an array, or for several parts their bytes.

    Args:
        observation: An array, or a nest of mappings and tuples of arrays.
        spec: The spaces.

    Raises:
        InvalidArgument: It has other parts, another shape, or numbers that its dtype lacks.
    """
    if spec.observation_parts:
        parts = in_order(spec.observation_parts)
        return pack(parts, dict(leaves(observation, tuples=tuple_paths(part.name for part in parts))))
    array = stored(observation, spec.observation_dtype)
    if array.shape != spec.observation_shape:
        raise InvalidArgument(f"observation has shape {array.shape}, allowed: {spec.observation_shape}")
    return np.ascontiguousarray(array)


def _spaces(spec: EnvSpec) -> Sequence[tuple[str, str, tuple[int, ...]]]:
    if spec.observation_parts:
        return spec.observation_parts
    return ((OBSERVATION, spec.observation_dtype, spec.observation_shape),)


def _parts_of(observation: Array, spec: EnvSpec) -> list[bytes]:
    data = observation.tobytes()
    if not spec.observation_parts:
        return [data]
    ends = np.cumsum([0, *(part.step_bytes for part in spec.observation_parts)]).tolist()
    return [data[begin:end] for begin, end in pairwise(ends)]


def _unpack_observation(data: Sequence[bytes], spec: EnvSpec, step: int) -> Array:
    spaces = _spaces(spec)
    if len(data) != len(spaces):
        raise InvalidArgument(f"observation has {len(data)} arrays at step {step}, allowed: {len(spaces)}")
    for part, (name, dtype, shape) in zip(data, spaces, strict=True):
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if len(part) != size:
            allowed = f"{size} ({dtype} {list(shape)})"
            raise InvalidArgument(f"observation {name!r} has {len(part)} bytes at step {step}, allowed: {allowed}")
        if dtype != "uint8" and not np.isfinite(numbers := np.frombuffer(part, dtype)).all():
            wrong = numbers[~np.isfinite(numbers)][0]
            raise InvalidArgument(f"observation {name!r} holds {wrong} at step {step}, allowed: finite numbers")
    if spec.observation_parts:
        return np.frombuffer(bytearray(b"".join(data)), np.uint8)  # which may be written to
    return np.frombuffer(bytearray(data[0]), spec.observation_dtype).reshape(spec.observation_shape)


def _unpack_mask(step: pb.Step, spec: EnvSpec) -> NDArray[np.bool_] | None:
    count = sum(spec.action_options) if spec.masks_actions else 0
    cut = "a truncated episode needs the mask of its last observation, whose value is computed from the legal actions"
    remedy = f"; {cut}" if count and step.truncated else ""
    if len(step.action_mask) != count:
        found = f"{len(step.action_mask)} bytes at step {step.step}, allowed: {count}"
        raise InvalidArgument(f"action_mask has {found}{remedy}")
    if not count:
        return None
    mask: NDArray[np.bool_] = np.frombuffer(step.action_mask, np.uint8) != 0
    if not np.logical_or.reduceat(mask, np.cumsum((0, *spec.action_options[:-1]))).all():
        found = f"no legal action at step {step.step}, allowed: at least one for each choice"
        raise InvalidArgument(f"action_mask has {found}{remedy}")
    return mask


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def largest_request_bytes(spec: EnvSpec) -> int:
    """Return the bytes of the largest message that a client has to send, an `open` or a step, generously."""
    opening = pack_open(Declared("", spec)).ByteSize() + 1024
    return max(_OPEN_BYTES, opening, _largest_step_bytes(spec))


def _largest_step_bytes(spec: EnvSpec) -> int:
    spaces: Sequence[tuple[str, str, tuple[int, ...]]] = _spaces(spec)
    observation = sum(math.prod(shape) * np.dtype(dtype).itemsize + 16 for _, dtype, shape in spaces)
    return observation + sum(spec.action_options) + 10 * max(spec.action_size, len(spec.action_options)) + 1024
