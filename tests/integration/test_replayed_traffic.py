"""Recorded traffic of an actor, and the actors of benchmarks/traffic.py that send it to real services."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.traffic_recorder import Proxy
from benchmarks.traffic_recording import Recording
from benchmarks.traffic_sender import Actor, Figures, Learner, Span, run_in
from tests.support import params_service
from tests.support.params_service import METADATA
from tests.support.replay_service import CHUNK_LENGTH, local_server, open_appender, write
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, crowd
from tidemill.params.blob import pack
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableDescription
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.rpc.options import Options, server_options
from tidemill.rpc.settings import ServerSettings

_STEPS = 3 * CHUNK_LENGTH


def _described(address: str) -> TableDescription:
    with ReplayClient(address) as client:
        return client.describe_table("t")


def _recorded(address: str) -> Recording:
    """Return the six chunks that an appender of two environments sends, one after the other."""
    with Proxy(address) as proxy, open_appender(proxy.address, "recorded", env_count=2) as appender:
        for first in range(0, _STEPS, CHUNK_LENGTH):
            for env in range(2):
                write(appender, range(first, first + CHUNK_LENGTH), env)
                assert appender.flush(WAIT_S)  # or chunks that wait for the connection would be sent at one time
                time.sleep(0.005)  # what is recorded is a pace
        return proxy.recording(0.01)


def test_replayed_actor_continues_its_streams(tmp_path: Path) -> None:
    """Each turn of the recording continues where the last one ended, in every stream, at the recorded pace."""
    with local_server() as server:
        server.replay.create_table(make_config())
        recording = _recorded(server.address)
    recording.save(tmp_path / "recording")
    loaded = Recording.load(tmp_path / "recording")
    assert (loaded.env_count, loaded.decisions, loaded.seconds) == (2, 2 * _STEPS, recording.seconds)
    sent = loaded.messages()
    first, second = [next(sent) for _ in range(6)], [next(sent) for _ in range(6)]
    steps = [pb.AppendRequest.FromString(message.request).data.chunks[0].first_step for message in first + second]
    assert steps[::2] == steps[1::2] == list(range(0, 2 * _STEPS, CHUNK_LENGTH))
    assert [round(b.due_s - a.due_s, 6) for a, b in zip(first, second, strict=True)] == [round(loaded.seconds, 6)] * 6


def test_recorder_lets_an_actor_ping_as_a_service_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with other options ends the connection of one that is idle for 15 s, and with it the recording."""
    made, plain_server = [], grpc.server

    def server(pool: ThreadPoolExecutor, handlers: Any, options: Options) -> grpc.Server:  # noqa: ANN401 - gRPC's
        made.append(options)
        return plain_server(pool, handlers, options=options)

    monkeypatch.setattr(grpc, "server", server)
    with Proxy("127.0.0.1:1"):
        assert made == [server_options(ServerSettings())]


async def test_actors_and_learner_use_real_services(tmp_path: Path) -> None:
    """Two actors have all they send acknowledged in separate streams, and each version; the learner its items."""
    with local_server() as replay, params_service.local_server(tmp_path) as params:
        table = make_config(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 0.6), max_items=1000)
        replay.replay.create_table(table)
        with ParamsClient(params.address) as client:
            token = client.acquire_fencing_token("test").fencing_token
            blob = pack({"weight": np.zeros(3, np.float32)})
            client.publish({Precision.FULL: blob}, METADATA, fencing_token=token, base_version=0)
        recording = await asyncio.to_thread(_recorded, replay.address)
        begin_s = time.monotonic() + 5.0  # by when all streams are open
        span, figures = Span(begin_s, begin_s, begin_s + crowd()), Figures()  # a second for each that wants a core
        actors = [Actor(f"actor-{index}", recording, 0.0, span, figures) for index in range(2)]
        learner = Learner("t", 4, 50.0, span, figures)
        mirror = pb.Mirror(slots=64, slot_steps=CHUNK_LENGTH, hold=6)
        works = [
            *(actor.append(replay.address, begin_s) for actor in actors),
            *(actor.fetch(params.address, from_file=False) for actor in actors),
            learner.sample(replay.address, mirror, sets_priorities=True),
            learner.publish(params.address, 0.2),
        ]
        await run_in(span, works, figures)
        described = await asyncio.to_thread(_described, replay.address)
    assert described.streams == 6  # those of the recorded appender too
    assert 2 * _STEPS < figures.decisions <= described.env_steps
    assert len(figures.acknowledged_ms) == figures.decisions // CHUNK_LENGTH
    assert len(figures.versions_ms) >= 4  # further versions than the one that was there
    assert figures.sampled > 4
    assert described.priority_updates > 4
    assert figures.peak_mib > 10
