"""Wrong settings are reported before anything is started or written."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest

from tests.support.demonstrations import demonstrations, write_demonstrations
from tests.support.free_ports import free_address
from tests.support.launched import ROOT, launched
from tests.support.naming import naming
from tests.support.own_algorithm import OwnAgent, OwnConfig, OwnPolicy
from tests.support.replay_service import local_server
from tests.support.waiting import WAIT_S
from tidemill.config.load import load_config, write_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import LauncherSettings, ReplaySettings, StorageSettings
from tidemill.envs.make import spec_of
from tidemill.envs.recorded_spec import record_spec
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, FatalError
from tidemill.replay import ItemWindow, ReplayWriter
from tidemill.replay.client import ReplayClient
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.base import OffPolicySettings
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.launcher.run.env_check import check_environment, try_here
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.process


def dies() -> gymnasium.Env[Any, Any]:
    """Take the process down, as a native library can."""
    os.abort()


def hangs() -> gymnasium.Env[Any, Any]:
    """Wait far longer than anybody would."""
    time.sleep(3600)
    raise AssertionError("somebody waited")


def raises() -> gymnasium.Env[Any, Any]:
    """Fail as a user's own code does."""
    raise RuntimeError("the level file is missing")


def goes_on() -> gymnasium.Env[Any, Any]:
    """Return a pendulum that never comes to an end."""
    return gymnasium.make("Pendulum-v1").unwrapped


@dataclasses.dataclass(frozen=True)
class ActsWrongly(OwnConfig):
    """Settings of an algorithm whose policy adds a dimension to its actions."""

    algorithm: str = f"{__name__}:ActsWrongly"

    def build_policy(self, env_spec: EnvSpec, context: PolicyContext) -> OwnPolicy:
        """Return that policy."""
        policy = super().build_policy(env_spec, context)
        act = policy.act
        policy.act = lambda seen, **_: PolicyOutput(act(seen).action[:, None], extras=act(seen).extras)  # type: ignore[method-assign]
        return policy


class SplitOwnPolicy(OwnPolicy):
    """A policy whose network an inference service may pass through, and whose initial priorities need parameters."""

    priority_uses_params = True

    def forward(self, policy_input: PolicyInput, noise: object = ()) -> dict[str, torch.Tensor]:
        """Return nothing: there is no network."""
        return {}

    def choose(self, policy_input: PolicyInput, *_: object, **__: object) -> PolicyOutput:
        """Return the output of `act`."""
        return self.act(policy_input)


@dataclasses.dataclass(frozen=True)
class ActsElsewhere(OwnConfig):
    """Settings of an algorithm with that policy."""

    algorithm: str = f"{__name__}:ActsElsewhere"

    def build_policy(self, env_spec: EnvSpec, context: PolicyContext) -> SplitOwnPolicy:
        """Return that policy."""
        return SplitOwnPolicy()


@dataclasses.dataclass(frozen=True)
class SeesImages(OffPolicySettings, OwnConfig):
    """Settings of an algorithm that does not use the torsos of the project."""

    actions = "discrete"
    algorithm: str = f"{__name__}:SeesImages"


@dataclasses.dataclass(frozen=True)
class UpdatesBadly(OwnConfig):
    """Settings of an algorithm whose update never ends, or takes the process down."""

    algorithm: str = f"{__name__}:UpdatesBadly"
    aborts: bool = False

    def build_agent(self, env_spec: EnvSpec, device: torch.device, seed: int) -> OwnAgent:
        """Return that agent."""
        agent = super().build_agent(env_spec, device, seed)
        agent.update = self._update  # type: ignore[assignment, method-assign]
        return agent

    def _update(self, *_: object) -> Any:  # noqa: ANN401 - nothing
        return os.abort() if self.aborts else time.sleep(3600)


def _config(function: str, **launcher: float) -> RunConfig:
    return RunConfig(env=EnvSettings(id=f"{__name__}:{function}"), launcher=LauncherSettings(**launcher))  # type: ignore[arg-type]


def test_wrong_setting_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    """One line and exit code 2; no folder is made, so the corrected command has its name."""
    with launched("train", "--run.root", str(tmp_path / "runs"), "--env.id", "LunarLandrContinuous-v3") as train:
        assert train.wait() == 2
    assert "did you mean 'LunarLanderContinuous-v3'?" in train.output
    assert len(train.lines) == 1
    assert not (tmp_path / "runs").exists()


def test_environment_that_takes_its_process_down_is_a_wrong_setting() -> None:
    """The launcher survives, and names the environment."""
    with pytest.raises(ConfigError, match=naming("test_env_check:dies")):
        check_environment(_config("dies"))


def test_module_that_raises_is_told_without_the_frames_of_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own line is left."""
    (tmp_path / "raising_env.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(_config("dies"), env=EnvSettings("raising_env:Own"))
    with pytest.raises(ConfigError, match=naming("raising_env.py 1 RuntimeError no licence")) as caught:
        check_environment(config)
    assert "importlib" not in str(caught.value)


def test_environment_that_hangs_is_given_up_at_the_bound() -> None:
    """The bound is that of a service's start; the message names the setting."""
    with pytest.raises(ConfigError, match=naming("3 launcher.start_timeout_s")):
        check_environment(_config("hangs", start_timeout_s=3.0))


def test_environment_that_raises_shows_its_own_words() -> None:
    """In one line, with its place, as of one that raises in a step."""
    with pytest.raises(ConfigError, match="RuntimeError: the level file is missing") as refused:
        check_environment(_config("raises"))
    (line,) = str(refused.value).splitlines()
    assert re.search(r"\(test_env_check\.py, line \d+\)$", line)


@pytest.mark.parametrize("function, words", [("dies", ""), ("hangs", "3"), ("raises", "RuntimeError")])
def test_environment_that_fails_in_a_run_that_has_trained_may_work_next_time(function: str, words: str) -> None:
    """It has before, so whoever starts the run again need not give up as for a wrong setting."""
    config = _config(function, start_timeout_s=3.0 if function == "hangs" else WAIT_S)
    with pytest.raises(FatalError, match=naming(f"test_env_check:{function}", words)):
        check_environment(config, before=config)


def test_environment_that_fits_is_left_alone() -> None:
    """The default settings are right, and nothing comes of it."""
    assert check_environment(RunConfig()) == ""


def test_algorithm_of_a_user_that_fits_is_left_alone() -> None:
    """Also one that has a list among its settings."""
    agent = {"algorithm": "tests.support.own_algorithm:OwnConfig"}
    assert check_environment(load_config({"env": {"id": "CartPole-v1"}, "agent": agent})) == ""


def test_algorithm_of_a_user_that_acts_wrongly_is_told() -> None:
    """Its method, and what it returned."""
    agent = {"algorithm": f"{__name__}:ActsWrongly"}
    with pytest.raises(ConfigError, match=naming(f"'{__name__}:ActsWrongly' act (2, 1) (2,)")):
        check_environment(load_config({"env": {"id": "CartPole-v1"}, "agent": agent}))


@pytest.mark.parametrize(
    "own, changed, words",
    [
        ("tests.support.own_algorithm:OwnConfig", {}, "forward choose priority_uses_params launcher.inference"),
        (f"{__name__}:ActsElsewhere", {"table": {"sampler": "prioritized"}}, "'prioritized' actor.inference_fallback"),
        (f"{__name__}:ActsElsewhere", {}, ""),
    ],
)
def test_policy_of_a_user_that_an_inference_service_cannot_act_for_is_told(
    own: str, changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Its policy says so, not its settings; no actor has to start and fail."""
    settings = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": own}, "launcher": {"inference": 1}, **changed}
    write_document(load_config(settings), tmp_path / "settings.yaml")
    try_here(tmp_path)
    refusal = tmp_path / "refusal"
    assert refusal.exists() == bool(words)
    assert not words or re.search(naming(f"'{own}'", words), refusal.read_text())


@pytest.mark.parametrize("aborts", [False, True])
def test_update_of_a_user_s_algorithm_that_does_not_end_well_is_told(aborts: bool) -> None:
    """The environment is not to blame alone, and a learner's GPU may be what the update needs."""
    agent = {"algorithm": f"{__name__}:UpdatesBadly", "aborts": aborts}
    settings = {"env": {"id": "CartPole-v1"}, "agent": agent}
    bad = {"learner": {"device": "cpu"}, "launcher": {"start_timeout_s": WAIT_S if aborts else 9.0}}
    with pytest.raises(ConfigError, match=naming(f"'CartPole-v1' agent.algorithm '{agent['algorithm']}'")) as told:
        check_environment(load_config({**settings, **bad}))
    assert re.search(naming("learner.device cuda"), str(told.value))
    good = {"learner": {"device": "cuda"}, "launcher": {"start_timeout_s": WAIT_S}}
    assert check_environment(load_config({**settings, **good})) == ""


def test_run_that_has_trained_on_images_with_their_channels_first_continues() -> None:
    """With its settings as they were, or with the torso by its name that `auto` chose; a new run is refused."""
    env = {"id": "tests.support.envs:pixels", "kwargs": {"shape": [3, 84, 84]}}
    auto, mlp = (
        load_config({"env": env, "agent": {"algorithm": "dqn", "network": network, "hidden_sizes": [8]}})
        for network in ("auto", "mlp")
    )
    with pytest.raises(ConfigError, match=naming("agent.network 'auto' (3, 84, 84)")):
        check_environment(auto)
    for now in (auto, mlp):
        check_environment(now, before=auto)


def test_run_that_has_trained_with_network_settings_of_no_effect_continues() -> None:
    """Networks of vectors had no torso that would have refused them; a new run is refused."""
    agent = {"algorithm": "td3", "network_settings": {"width": 3}, "hidden_sizes": [8]}
    config = load_config({"env": {"id": "Pendulum-v1"}, "agent": agent})
    with pytest.raises(ConfigError, match=naming("agent.network_settings {'width': 3} 'mlp'")):
        check_environment(config)
    check_environment(config, before=config)


def test_algorithm_of_a_user_takes_images_of_any_order() -> None:
    """Also if its settings are based on those of the project, whose torsos it need not use."""
    env = {"id": "tests.support.envs:pixels", "kwargs": {"shape": [3, 84, 84]}}
    check_environment(load_config({"env": env, "agent": {"algorithm": f"{__name__}:SeesImages"}}))


def test_run_whose_environment_has_other_spaces_does_not_continue(tmp_path: Path) -> None:
    """Its settings are the same, its code is not: the refusal names the environment and each space, then and now.

    Only a run that has not trained may as well start again under its name.
    """
    config = dataclasses.replace(RunConfig(), run=RunSettings(root=str(tmp_path), name="lander"))
    config.run.folder.mkdir()
    check_environment(config, before=config)
    spec = EnvSpec((8,), "float32", action_shape=(2,))
    record_spec(config.run.folder, spec)
    check_environment(config, before=config)
    record_spec(config.run.folder, dataclasses.replace(spec, observation_shape=(7,)))
    words = naming(f"'lander' env.id {config.env.id!r} observation_shape [8] [7] run.name")
    with pytest.raises(ConfigError, match=words) as refused:
        check_environment(config, before=config)
    assert "\n" not in str(refused.value)
    assert "action_shape" not in str(refused.value)
    again = f"train --config {config.run.folder / 'config.yaml'}` with your options starts it from scratch"
    assert again in str(refused.value)
    (tmp_path / "00000001.log").touch()  # the table of the other spaces would come back with a log beside the run
    beside = ReplaySettings(storage=StorageSettings(folder=str(tmp_path)))
    with pytest.raises(ConfigError, match=words) as refused:
        check_environment(dataclasses.replace(config, replay=beside), before=config)
    assert again not in str(refused.value)
    (config.run.folder / "result.json").write_text("{}")
    with pytest.raises(ConfigError, match=words) as refused:
        check_environment(config, before=config)
    assert again not in str(refused.value)


def test_environment_without_a_limit_is_noted() -> None:
    """Its evaluation may never end: the note names the setting that ends it, which then ends the note too."""
    env = EnvSettings(id=f"{__name__}:goes_on")
    config = dataclasses.replace(RunConfig(), env=env)
    assert "goes_on does not limit its episodes" in (said := check_environment(config))
    assert "--env.max-evaluation-steps" in said
    assert check_environment(dataclasses.replace(config, env=dataclasses.replace(env, max_evaluation_steps=9))) == ""


def test_launcher_itself_imports_neither_gymnasium_nor_torch() -> None:
    """Only the process that makes the environment does: the launcher stays small."""
    code = "import sys, tidemill.services.launcher.commands.train; print({'gymnasium', 'torch'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


def _with_source(**source: object) -> RunConfig:
    demos = {"fraction": 0.5, **source}
    agent = {"algorithm": "dqn", "n_step": 1}
    return load_config({"env": {"id": "CartPole-v1"}, "agent": agent, "learner": {"sources": {"demos": demos}}})


def test_source_is_checked_before_anything_starts() -> None:
    """A table that fits is taken; one that is not there, or has other columns, is named with what is allowed."""
    with local_server() as server:
        with pytest.raises(ConfigError, match=naming("learner.sources.demos.table 'demos'", server.address)) as missing:
            check_environment(_with_source(replay=server.address))
        assert "TableConfig" not in str(missing.value)
        table = demonstrations(max_item_steps=2)
        write_demonstrations(server.address, table)
        check_environment(_with_source(replay=server.address))
        wider = tuple(
            dataclasses.replace(column, shape=(3,)) if column.name == "observation" else column
            for column in table.signature
        )
        with ReplayClient(server.address) as client:
            client.create_table(dataclasses.replace(table, name="wider", signature=wider))
        with pytest.raises(ConfigError, match=naming("learner.sources.demos 'observation' float32 [3] [4]")):
            check_environment(_with_source(replay=server.address, table="wider"))


def test_source_of_a_run_with_hindsight_has_its_longer_items() -> None:
    """Goals are taken from up to `hindsight_steps` later: items of a transition alone would end the learner."""
    with local_server() as server:
        long, short = (
            load_config(
                {
                    "env": {"id": "tests.support.goal_envs:Point", "max_evaluation_steps": 9},
                    "agent": {"algorithm": "sac"},
                    "table": {"hindsight": 0.8, "hindsight_steps": 10},
                    "learner": {"sources": {name: {"replay": server.address}}},
                }
            )
            for name in ("long", "short")
        )
        signature = stored_columns(long.agent, spec_of(long.env))
        row = {column.name: np.zeros(column.shape, column.dtype) for column in signature}
        for name, steps in (("long", 11), ("short", 2)):
            table = dataclasses.replace(demonstrations(signature=signature, max_item_steps=steps), name=name)
            with ReplayWriter(server.address, table, windows=ItemWindow(steps)) as writer:
                for _ in range(steps):
                    writer.append(row)
        check_environment(long)
        with pytest.raises(ConfigError, match=naming("learner.sources.short 2 11")):
            check_environment(short)


def test_source_that_does_not_answer_is_named_with_a_remedy() -> None:
    """It says which address, and how a server is started there."""
    address = free_address()
    with pytest.raises(ConfigError, match=naming(f"learner.sources.demos.replay {address} tidemill replay --listen")):
        check_environment(_with_source(replay=address))


def test_source_on_the_run_s_own_server_is_left_to_the_learner() -> None:
    """That server is not there yet."""
    check_environment(_with_source())
