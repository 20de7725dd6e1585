"""Who gets a slot for an episode: so many clients at a time, and of one address no more than its share."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.support.inference_service import FixedParams
from tests.support.naming import because, naming
from tidemill.config.services import InferenceSettings
from tidemill.errors import Reason, ResourceExhausted, Unavailable
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.policy_io import PolicyInput
from tidemill.rpc.settings import ServerSettings
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.episode import Episode
from tidemill.services.inference.forward_thread import ForwardThread, PendingStep
from tidemill.services.inference.metrics import Metrics, SimulatorMetrics
from tidemill.services.inference.open_simulators import most_per_client
from tidemill.services.inference.resume_token import Identity, Place
from tidemill.services.inference.simulators import Simulators
from tidemill.simulator.wire import Declared, SeenStep
from tidemill.types import EnvSpec

_SPEC = EnvSpec((2,), "float32", num_actions=3)
_EPOCH, _SLOTS = 7, 4


def _episode(first_step: int) -> Episode:
    return Episode(_SPEC, 0, (), first_step)


def _simulators(
    identity: Identity, registry: CollectorRegistry | None = None, forward: Mock | None = None, slots: int = _SLOTS
) -> Simulators:
    """Return slots whose streams have ten rows each, two for each caller."""
    writer: Any = Mock(epoch=_EPOCH, next_steps=np.full(_SLOTS, 10), stored_steps=np.full(_SLOTS, 10))
    return Simulators(
        writer,
        forward or Mock(),
        _episode,
        Mock(),
        identity,
        SimulatorMetrics(registry or CollectorRegistry()),
        Mock(),
        slots=slots,
        slots_per_caller=2,
        grace_s=60.0,
        max_wait_s=0.001,
        device=torch.device("cpu"),
        rng=np.random.default_rng(0),
    )


def _refused(message: str) -> Any:  # noqa: ANN401 - pytest's own
    return pytest.raises(ResourceExhausted, match=naming(message), check=because(Reason.TOO_MANY_CALLS))


async def test_address_takes_no_more_slots_than_its_share() -> None:
    """Whatever its clients call themselves; another address gets the slots that are left."""
    registry = CollectorRegistry()
    simulators = _simulators(Identity(None), registry)
    seats = [await simulators.join(Declared(name, _SPEC), "10.0.0.1") for name in ("a", "b")]
    with _refused("'c' 2 10.0.0.1 2 (inference.simulators_per_client)"):
        await simulators.join(Declared("c", _SPEC), "10.0.0.1")
    for name in ("a", "b"):
        await simulators.join(Declared(name, _SPEC), "10.0.0.2")
    with _refused("4 (inference.simulators)"):
        await simulators.join(Declared("a", _SPEC), "10.0.0.3")
    for setting in ("simulators", "simulators_per_client"):
        assert registry.get_sample_value("tidemill_simulator_refused_total", {"setting": setting}) == 1
    for seat in seats:
        simulators.leave(seat, seat.calls, at_once=True)
        with _refused("4 (inference.simulators)"):  # its episode is yet to be ended
            await simulators.join(Declared("c", _SPEC), "10.0.0.1")
        await asyncio.gather(*simulators._tasks)
        await simulators.join(Declared("c", _SPEC), "10.0.0.1")


async def test_address_that_has_left_is_forgotten() -> None:
    """However many have come, nothing is kept of them."""
    simulators = _simulators(Identity(None))
    for number in range(100):
        seat = await simulators.join(Declared("a", _SPEC), f"10.0.0.{number}")
        simulators.leave(seat, seat.calls, at_once=True)
        await asyncio.gather(*simulators._tasks)
    assert not simulators._taken


async def test_tokens_bring_no_address_beyond_its_share(tmp_path: Path) -> None:
    """After a restart, too, each episode that continues takes a slot of whoever continues it."""
    identity = Identity(tmp_path / "kept.json")
    identity.keep(_EPOCH)
    simulators = _simulators(Identity(tmp_path / "kept.json"))
    tokens = [Place(_EPOCH, slot, 5, bytes(16)).signed(identity.key) for slot in range(3)]
    for token in tokens[:2]:
        seat = await simulators.join(Declared("a", _SPEC, token), "10.0.0.1")
        assert seat.episode is not None
    with _refused("'a' 2 10.0.0.1 2 (inference.simulators_per_client)"):
        await simulators.join(Declared("a", _SPEC, tokens[2]), "10.0.0.1")


@pytest.mark.parametrize(
    "address, each, allowed",
    [
        ("127.0.0.1:7406", -1, 9),
        ("unix:///x", -1, 9),
        ("0.0.0.0:7406", -1, 5),
        ("0.0.0.0:7406", 3, 3),
        ("[::1]:7406", 3, 3),
    ],
)
def test_share_is_half_where_other_machines_call(address: str, each: int, allowed: int) -> None:
    """Programs on one machine have the same address and belong together; a share that is set counts anywhere."""
    settings = InferenceSettings(ServerSettings(address), simulators=9, simulators_per_client=each)
    assert most_per_client(settings) == allowed


async def test_call_that_breaks_off_while_it_waits_for_another_leaves_its_slot() -> None:
    """It waits for the step of the call before it, which the rate limiter holds back; the client is gone for good."""
    simulators = _simulators(Identity(None))
    seat = await simulators.join(Declared("a", _SPEC), "10.0.0.1")
    seat.place, seat.episode = Place(_EPOCH, seat.slot, 5, bytes(16)), Mock(is_over=False, evaluate=False)
    seat.under_way = asyncio.create_task(asyncio.sleep(3600))
    token = seat.place.signed(simulators._identity.key)
    again = asyncio.create_task(simulators.join(Declared("a", _SPEC, token), "10.0.0.1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert seat.expiry is not None, "its slot is taken for good"
    seat.expiry.cancel()
    seat.under_way.cancel()


async def test_of_two_calls_that_wait_for_one_step_the_later_continues() -> None:
    """The other would let the client go once it is seen to have ended, in the middle of the episode."""
    simulators = _simulators(Identity(None))
    seat = await simulators.join(Declared("a", _SPEC), "10.0.0.1")
    seat.place, seat.episode = Place(_EPOCH, seat.slot, 5, bytes(16)), Mock(is_over=False, evaluate=False)
    step = asyncio.Event()
    under_way: Any = asyncio.create_task(step.wait())
    seat.under_way = under_way
    token = seat.place.signed(simulators._identity.key)
    calls = [asyncio.create_task(simulators.join(Declared("a", _SPEC, token), "10.0.0.1")) for _ in range(2)]
    for _ in range(3):
        await asyncio.sleep(0)
    step.set()
    with pytest.raises(Unavailable, check=because(Reason.CALL_REPLACED)):
        await calls[0]
    assert await calls[1] is seat


@pytest.mark.parametrize("has_played", [False, True])
async def test_call_that_breaks_off_before_the_first_decision_frees_its_slot(has_played: bool) -> None:
    """Its client has no token to continue with and comes back as another, while the step may never be answered."""

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    simulators = _simulators(Identity(None), forward=Mock(answer=never), slots=1)
    seat = await simulators.join(Declared("a", _SPEC), "10.0.0.1")
    if has_played:  # it begins another episode, and has dropped the token of this one
        seat.place, seat.episode = Place(_EPOCH, seat.slot, 5, bytes(16)), _episode(3)
        token = seat.place.signed(simulators._identity.key)
        assert await simulators.join(Declared("a", _SPEC, token), "10.0.0.1") is seat
    begun = asyncio.create_task(simulators.play(seat, seat.calls, SeenStep(0, np.zeros(2, np.float32))))
    for _ in range(3):
        await asyncio.sleep(0)
    assert seat.episode is not None
    assert seat.episode.next_step == 0
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    simulators.leave(seat, seat.calls, at_once=False)
    for _ in range(5):
        await asyncio.sleep(0)
    assert await simulators.join(Declared("a", _SPEC), "10.0.0.1") is not seat


async def test_step_of_a_call_that_broke_off_waits_no_longer() -> None:
    """While there are no parameters nothing takes what waits, and each client that left would leave a step."""
    batcher: Batcher[PendingStep] = Batcher(64, 60.0)
    watcher: Any = FixedParams()
    forward = ForwardThread(Mock(spec=SplitPolicy), watcher, batcher, Metrics(CollectorRegistry()), Mock())
    with closing(forward):
        answering = asyncio.create_task(forward.answer(MagicMock(spec=PolicyInput), Mock()))
        await asyncio.sleep(0)
        assert len(batcher) == 1
        answering.cancel()
        await asyncio.wait((answering,))
        assert not len(batcher)


async def test_slot_is_free_again_though_the_end_of_its_episode_fails() -> None:
    """The error is logged, for nobody waits for it; the slot and the share of its address were lost for good."""
    simulators = _simulators(Identity(None), slots=1)
    seat = await simulators.join(Declared("a", _SPEC), "10.0.0.1")
    seat.episode = Mock(is_over=False, abandon=Mock(side_effect=RuntimeError("broken")))
    with capture_logs() as logs:
        simulators.leave(seat, seat.calls, at_once=True)
        await asyncio.gather(*simulators._tasks, return_exceptions=True)
        await asyncio.sleep(0)
    assert [str(line["exc_info"]) for line in logs if line["log_level"] == "error"] == ["broken"]
    assert not simulators._taken
    assert await simulators.join(Declared("b", _SPEC), "10.0.0.2") is not seat
