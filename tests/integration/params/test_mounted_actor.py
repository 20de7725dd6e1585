"""An actor beside the parameter server's folder reads versions there, whatever address it calls."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.support.params_service import METADATA, local_server
from tidemill.config.load import load
from tidemill.config.sections import ActorConfig
from tidemill.envs.make import spec_of
from tidemill.params.blob import pack
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision
from tidemill.rl.agents.build import build_agent
from tidemill.rl.exploration import ActorSlot
from tidemill.services.actor.__main__ import make_policy
from tidemill.services.actor.acting.metrics import open_curves
from tidemill.services.paramserver import servicer as servicer_module


def _config(root: Path, address: str) -> ActorConfig:
    words = ["--env.id", "CartPole-v1", "--agent.algorithm", "dqn", "--agent.hidden-sizes", "8"]
    words += ["--run.root", str(root), "--run.name", "run", "--cluster.params", address]
    return load(ActorConfig, words, prog="actor", description="")


@pytest.mark.parametrize("is_mounted", [True, False])
def test_actor_reads_versions_from_the_runs_folder(
    is_mounted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that mounts it; one whose `run.root` is another folder is sent the bytes."""
    monkeypatch.setattr(servicer_module, "is_local", lambda peer: False)
    with local_server(tmp_path / "run" / "params") as server, ExitStack() as stack:
        config = _config(tmp_path if is_mounted else tmp_path / "elsewhere", server.address)
        spec = spec_of(config.env)
        state = build_agent(config.agent, spec, "cpu", 1).policy_state()
        blob = pack({name: np.asarray(tensor) for name, tensor in state.items()})
        client = stack.enter_context(ParamsClient(server.address, reads_files=False))
        token = client.acquire_fencing_token("test").fencing_token
        client.publish({Precision.FULL: blob}, METADATA, fencing_token=token, base_version=0)
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
        assert open_curves(_config(tmp_path, "127.0.0.1:1"), "actor-0", lambda: 0, stack) is None
    assert list((tmp_path / "run").iterdir()) == []
