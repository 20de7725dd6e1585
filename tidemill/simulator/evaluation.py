"""The evaluator's side of the simulator service: measures a version by episodes of the clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from tidemill.errors import TidemillError
from tidemill.rpc.status import translated
from tidemill.simulator.v1 import simulator_pb2 as pb
from tidemill.simulator.v1 import simulator_pb2_grpc

_LOOK_S = 0.2
_JOIN_S = 10.0


@dataclass(frozen=True)
class ClientEpisodes:
    """Episodes of an evaluation, in the order in which they ended.

    Attributes:
        returns: Sum of the rewards of each.
        lengths: Number of actions of each.
        failed: How many more do not count, because their client was gone or reported an action.
    """

    returns: list[float]
    lengths: list[int]
    failed: int


def evaluate(
    channel: grpc.Channel,
    version: int,
    episodes: int,
    *,
    epsilon: float,
    is_last: bool,
    is_stopped: Callable[[], bool],
    on_progress: Callable[[int], None] = lambda _: None,
) -> ClientEpisodes | None:
    """Wait until so many episodes of clients have ended; see `SimulatorService.Evaluate`.

    Args:
        channel: To the simulator service.
        version: Of the parameters.
        episodes: How many.
        epsilon: Probability of a random action.
        is_last: Whether training has ended.
        is_stopped: Asked a few times a second; True abandons the evaluation, and None is returned.
        on_progress: Called with the number of episodes that have ended, after each.

    Raises:
        Unavailable: The service is gone; a further call begins again.
        TidemillError: What another attempt would meet as well.
    """
    request = pb.EvaluateRequest(params_version=version, episodes=episodes, epsilon=epsilon, is_last=is_last)
    responses = simulator_pb2_grpc.SimulatorServiceStub(channel).Evaluate(request)
    received: queue.SimpleQueue[pb.EvaluateResponse | TidemillError | None] = queue.SimpleQueue()

    def receive() -> None:
        try:
            with translated():
                for response in responses:
                    received.put(response)
        except TidemillError as error:
            received.put(error)
        else:
            received.put(None)

    receiver = threading.Thread(target=receive, name="evaluation", daemon=True)
    receiver.start()
    played = ClientEpisodes([], [], 0)
    failed = 0
    try:
        while not is_stopped():
            try:
                end = received.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if isinstance(end, TidemillError):
                raise end
            if end is None:
                return ClientEpisodes(played.returns, played.lengths, failed)
            if end.has_failed:
                failed += 1
            else:
                played.returns.append(end.episode_return)
                played.lengths.append(end.length)
            on_progress(len(played.returns) + failed)
        return None
    finally:
        responses.cancel()
        receiver.join(_JOIN_S)
