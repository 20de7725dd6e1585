"""A call in turns in a process that was forked from the one that makes it."""

from __future__ import annotations

import multiprocessing
import re
from functools import partial
from multiprocessing.queues import SimpleQueue

from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.errors import FailedPrecondition
from tidemill.rpc.channel import open_channel
from tidemill.rpc.dialogue import Dialogue
from tidemill.simulator.v1 import simulator_pb2 as pb
from tidemill.simulator.v1 import simulator_pb2_grpc


def _use_forked(dialogue: Dialogue[pb.PlayRequest, pb.PlayResponse], said: SimpleQueue[str]) -> None:
    try:
        dialogue.ask(pb.PlayRequest())
    except FailedPrecondition as error:
        said.put(str(error))
    dialogue.drain(WAIT_S)
    dialogue.end()


def test_forked_child_is_told() -> None:
    """It would wait for ever for an answer that comes to its parent; to end the call does nothing there."""
    context = multiprocessing.get_context("fork")
    said: SimpleQueue[str] = context.SimpleQueue()
    with open_channel("127.0.0.1:9") as channel:
        play = partial(simulator_pb2_grpc.SimulatorServiceStub(channel).Play, wait_for_ready=True)
        dialogue = Dialogue[pb.PlayRequest, pb.PlayResponse](play, pb.PlayRequest(), "the service", "SimulatorClient")
        child = context.Process(target=_use_forked, args=(dialogue, said), daemon=True)
        child.start()
        try:
            child.join(WAIT_S)
            assert child.exitcode == 0
            assert re.search(naming("SimulatorClient process"), said.get())
        finally:
            child.kill()
            dialogue.end()
