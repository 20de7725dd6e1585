"""The actor's side of the inference service: one call, made again to the next replica when it breaks off."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import grpc

from tidemill.errors import TidemillError
from tidemill.inference.v1 import inference_pb2 as pb
from tidemill.inference.v1 import inference_pb2_grpc
from tidemill.inference.wire import Answer, Opening, pack_open, pack_step, unpack_answer
from tidemill.rl.policy_io import PolicyInput
from tidemill.rpc.channel import open_channel
from tidemill.rpc.dialogue import Dialogue

_Call = Dialogue[pb.ActRequest, pb.ActResponse]


class InferenceClient:
    """Asks one of several replicas of the service for the network's output; used by one thread.

    A server that is gone or frozen is noticed by the connection's keepalive, within ten seconds. What the service
    keeps of an actor, stacks and recurrent states, is sent along with the first step of every call, so nothing is lost
    with it.
    """

    def __init__(self, addresses: Sequence[str], opening: Opening, first: int = 0) -> None:
        """Prepare; nothing is connected yet.

        Args:
            addresses: Of the replicas, at least one.
            opening: Description of the actor.
            first: Number of the replica to ask first, counted round: actors spread over them by their index.
        """
        self._addresses, self._next = tuple(addresses), first
        self._opening, self._calls = opening, 0
        self._lock = threading.Lock()  # `interrupt` comes from another thread
        self._channel: grpc.Channel | None = None
        self._call: _Call | None = None
        self._state: grpc.ChannelConnectivity | None = None
        self._interrupted = False

    @property
    def address(self) -> str:
        """Address of the replica that is asked now."""
        return self._addresses[self._next % len(self._addresses)]

    def ask(self, policy_input: PolicyInput) -> Answer:
        """Return the network's output for the next step; waits for it.

        Raises:
            Unavailable, ResourceExhausted: The call broke off, or no replica takes it now: the next `ask` goes to the
                next one.
            TidemillError: What another attempt would meet as well.
        """
        try:
            is_new = self._call is None
            call = self._call or self._open()
            request = pack_step(policy_input, self._opening.spec.frame_stack, whole=is_new)
            return unpack_answer(call.ask(request), self._opening.num_envs)
        except TidemillError:
            self._move_on()
            raise

    def is_connected(self) -> bool:
        """True if the present replica is connected. Never waits; moves to the next replica after a failure."""
        if self._channel is None:
            self._watch(self._connect())
        if self._state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self._move_on()
        return self._state is grpc.ChannelConnectivity.READY

    def interrupt(self) -> None:
        """End an `ask` that waits, and every later one, with Unavailable; from any thread."""
        with self._lock:
            self._interrupted = True
            if self._call is not None:
                self._call.end()

    def close(self) -> None:
        """End the call and the connection. May be called twice."""
        self.interrupt()
        self._move_on()

    def _watch(self, channel: grpc.Channel) -> None:
        def note(state: grpc.ChannelConnectivity) -> None:
            if channel is self._channel:  # and not one that was left
                self._state = state

        channel.subscribe(note, try_to_connect=True)

    def _connect(self) -> grpc.Channel:
        if self._channel is None:
            self._state = None
            self._channel = open_channel(self.address)
        return self._channel

    def _open(self) -> _Call:
        self._calls += 1
        opening = pack_open(self._opening)
        # so that noise does not come a second time
        opening.open.noise_seed = (self._opening.noise_seed + (self._calls - 1) * 1_000_003) % 2**64
        stub = inference_pb2_grpc.InferenceServiceStub(self._connect())
        call = _Call(stub.Act, opening, "the inference service", "InferenceClient")
        with self._lock:
            self._call = call
            if self._interrupted:
                call.end()
        return call

    def _move_on(self) -> None:
        """Leave the present replica; the next `ask` begins with another."""
        with self._lock:
            call, self._call = self._call, None
        channel, self._channel, self._state = self._channel, None, None
        if call is not None:
            call.end()
        if channel is not None:
            channel.close()
        self._next += 1
