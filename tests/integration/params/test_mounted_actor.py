"""An actor beside the parameter server's folder reads versions there, whatever address it calls."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.support.params_service import METADATA, local_server
from tests.support.replay_service import local_server as replay_server
from tests.support.simulator_service import TABLE, create_table
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.load import load
from tidemill.config.sections import ActorConfig, InferenceConfig
from tidemill.envs.make import spec_of
from tidemill.params.blob import pack
from tidemill.params.client import ParamsClient
from tidemill.params.version import Params, ParamsMetadata, Precision
from tidemill.rl.agents.build import build_agent
from tidemill.rl.exploration import ActorSlot
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.actor import __main__ as actor
from tidemill.services.actor.__main__ import make_policy
from tidemill.services.actor.acting.metrics import open_curves
from tidemill.services.inference.open_simulators import open_curves as open_curves_of_simulators
from tidemill.services.paramserver import servicer as servicer_module


def _config(root: Path, address: str, *more: str) -> ActorConfig:
    words = ["--env.id", "CartPole-v1", "--agent.algorithm", "dqn", "--agent.hidden-sizes", "8"]
    words += ["--run.root", str(root), "--run.name", "run", "--cluster.params", address]
    return load(ActorConfig, [*words, *more], prog="actor", description="")


def _publish(config: ActorConfig, address: str, metadata: ParamsMetadata = METADATA, *, base_version: int = 0) -> bytes:
    state = build_agent(config.agent, spec_of(config.env), "cpu", 1).policy_state()
    blob = pack({name: np.asarray(tensor) for name, tensor in state.items()})
    with ParamsClient(address, reads_files=False) as client:
        token = client.acquire_fencing_token("test").fencing_token
        client.publish({Precision.FULL: blob}, metadata, fencing_token=token, base_version=base_version)
    return blob


@pytest.mark.parametrize("is_mounted", [True, False])
def test_actor_reads_versions_from_the_runs_folder(
    is_mounted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that mounts it; one whose `run.root` is another folder is sent the bytes."""
    monkeypatch.setattr(servicer_module, "is_local", lambda peer: False)
    with local_server(tmp_path / "run" / "params") as server, ExitStack() as stack:
        config = _config(tmp_path if is_mounted else tmp_path / "elsewhere", server.address)
        spec = spec_of(config.env)
        blob = _publish(config, server.address)
        stop = threading.Event()
        acting = make_policy(config, spec, ActorSlot(num_envs=1), 1, stop, stack)
        assert acting.own is not None
        assert acting.own.wait(stop)
        sent_bytes = server.metric("fetched_bytes_total", precision="full")
    assert sent_bytes == (0 if is_mounted else len(blob))


def test_curves_are_left_out_where_the_runs_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is mounted read-only does not end an actor."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with ExitStack() as stack:
        assert open_curves(_config(tmp_path, "127.0.0.1:1"), "actor-0", lambda: 0, stack, lambda: None) is None
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("is_own", [True, False])
def test_curves_are_left_out_where_the_folder_is_another_runs(tmp_path: Path, is_own: bool) -> None:
    """On another machine there may be a run of the same name, with versions of the same numbers."""
    for root in (tmp_path / "here", tmp_path / "there"):
        with local_server(root / "run" / "params") as server:
            config = _config(tmp_path / "here" if is_own else tmp_path / "there", server.address)
            _publish(config, server.address)
            if root.name == "here":
                with ParamsClient(server.address) as client:
                    newest = client.fetch()
    inference = load(InferenceConfig, ["--run.root", config.run.root, "--run.name", "run"], prog="", description="")
    with ExitStack() as stack:
        curves = open_curves(config, "actor-0", lambda: 0, stack, lambda: newest)
        played = open_curves_of_simulators(inference, lambda: newest)
        assert curves is not None
        assert played is not None
        curves.write({"episode_return": 1.0}, 1)
        played.count(1.0, evaluate=False)
        played.write(0, 1)
    names = {"actor-0.jsonl", "inference-0.jsonl"} if is_own else set()
    assert {file.name for file in config.run.folder.glob("curves/*")} == names
    assert {file.name for file in config.run.folder.glob("tensorboard/*")} == {Path(name).stem for name in names}


@pytest.mark.parametrize("of_other", [1, 2, 3])
def test_curves_end_with_their_run(tmp_path: Path, of_other: int) -> None:
    """Another run is started at the addresses of a run whose actors stay: its points are not of the first one.

    However many versions it has by the next point, fewer than the first one or more.
    """
    newest = []
    for root, count in ((tmp_path, 2), (tmp_path / "other", of_other)):
        with local_server(root / "run" / "params") as server, ParamsClient(server.address) as client:
            for base in range(count):
                _publish(_config(root, server.address), server.address, base_version=base)
            newest.append(client.fetch())
    assert _points(_config(tmp_path, "127.0.0.1:1"), [newest[0], newest[0], newest[1], newest[0]]) == [0, 1, 3]


def test_curves_continue_with_a_version_that_was_removed_meanwhile(tmp_path: Path) -> None:
    """An actor may be behind its run. One that has found no version yet is not known to be of it."""
    with local_server(tmp_path / "run" / "params", keep_versions=2) as server, ParamsClient(server.address) as client:
        config = _config(tmp_path, server.address)

        def published(base: int) -> Params | None:
            _publish(config, server.address, base_version=base)
            return client.fetch()

        def followed() -> Iterator[Params | None]:
            yield published(0)
            removed.append(published(1))
            assert [published(2), published(3)]
            yield removed[0]

        removed: list[Params | None] = []
        assert _points(config, followed()) == [0, 1]
        assert _points(config, removed) == [0, 1]


def _points(config: ActorConfig, followed: Iterable[Params | None]) -> list[int]:
    """Return the points of a run once another actor has followed these versions, one after the other."""
    newest: list[Params | None] = []
    with ExitStack() as stack:
        curves = open_curves(config, "actor-0", lambda: 0, stack, lambda: newest[-1])
        assert curves is not None
        for step, params in enumerate(followed):
            newest.append(params)
            curves.write({"episode_return": 1.0}, step)
    file = config.run.folder / "curves" / "actor-0.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_curves_are_over_the_decisions_of_all_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not over those that the actor's own replay server has stored, one of several."""
    monkeypatch.setattr(actor, "watch_writer", lambda *_: None)  # a process registers one
    file, stop = tmp_path / "run" / "curves" / "actor-0.jsonl", threading.Event()
    with local_server(tmp_path / "run" / "params") as params, replay_server() as replay, ExitStack() as stack:
        where = ("--cluster.replay", replay.address, "--table.name", TABLE, "--actor.log-every-s", "0.1")
        config = _config(tmp_path, params.address, *where, "--actor.index", "0", "--actor.id", "actor-0")
        create_table(replay.address, config.agent, spec_of(config.env))
        _publish(config, params.address, ParamsMetadata(env_steps=10**9))
        server = stack.enter_context(BackgroundServer("actor", ServerSettings("127.0.0.1:0")))
        server.start()
        acting = threading.Thread(target=actor.act, args=(config, server, stop))
        acting.start()
        stack.callback(acting.join, WAIT_S)
        stack.callback(stop.set)
        wait_until(file.exists, "a point")
    assert json.loads(file.read_text().partition("\n")[0])["env_steps"] == 10**9
