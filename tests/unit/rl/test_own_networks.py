"""A user's own torso: in every algorithm's networks, with its settings, and checked."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from networks import ResidualTorso
from tests.support.batches import (
    CASES,
    COLOURS,
    CONTINUOUS,
    OWN_NETWORK,
    VECTOR,
    WithIdleRank,
    policy_input,
    sampled_batch,
)
from tests.support.naming import naming
from tidemill.config.load import load, load_config
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.params.blob import half
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.sac import build_actor, build_critic
from tidemill.rl.networks.ensemble_mlp import TorsoEnsembleMLP
from tidemill.rl.networks.layers.linear import flat
from tidemill.rl.networks.precision import acting_dtype
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.networks.torsos import check_settings
from tidemill.rl.process_group import SINGLE_PROCESS
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import algorithms
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

_MODULE = """
import torch
from torch import nn


class Torso(nn.Module):
    def __init__(self, env_spec, rng, outputs=4, shape="good"):
        super().__init__()
        self.layer, self.shape = nn.Linear(3, 4), shape
        if outputs:
            self.outputs = outputs
        if shape == "double":
            self.layer = self.layer.double()
        if "mask" in shape:
            self.register_buffer("mask", torch.full((3,), -torch.inf), persistent=shape != "unsaved mask")

    def forward(self, observation):
        if self.shape == "flat":
            return self.layer(observation).sum(dim=1)
        if self.shape == "tuple":
            return self.layer(observation), None
        if self.shape == "integers":
            return self.layer(observation).long()
        return self.layer(observation if self.shape != "wide" else torch.cat((observation, observation), 1))


class WithWords(Torso):
    def get_extra_state(self):
        return {"kind": self.shape}


def fussy(env_spec, rng, *, width=1):
    raise ValueError(f"width is {width}, must be even")


def no_module(env_spec, rng):
    return 3


number = 3
"""


@pytest.fixture
def own_torsos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module in the working directory with torsos that go wrong."""
    (tmp_path / "odd_torsos.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("odd_torsos", None)


@pytest.mark.parametrize("name", [f"{algorithm}_own_network" for algorithm, *_ in OWN_NETWORK])
def test_every_parameter_of_the_torso_learns(name: str) -> None:
    """In the actor and in the critic, or in the one network there is; the policy takes them over."""
    config, env_spec = CASES[name]
    agent, policy = build_agent(config, env_spec, seed=1), build_policy(config, env_spec, seed=2)
    before = agent.policy_state()
    torso = [key for key in before if "torso." in key]
    assert len(torso) >= len(list(ResidualTorso(env_spec, torch.Generator(), width=12, blocks=1).parameters()))
    for number in range(2):
        batch = sampled_batch(agent, config, env_spec, 16, torch.Generator().manual_seed(number))
        agent.update(batch, torch.ones(16))
    after = agent.policy_state()
    assert [key for key in torso if torch.equal(before[key], after[key])] == []
    policy.load(after)


class Pretrained(nn.Module):
    """An encoder, an adapter and a layer that nothing uses, of which some or all do not learn."""

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator, *, still: str) -> None:
        super().__init__()
        self.encoder = ResidualTorso(env_spec, rng, width=12, blocks=1)
        self.adapter = nn.Linear(12, 6)
        self.unused = nn.Linear(3, 3)
        self.outputs = 6
        self._learns = still != "no gradients"
        frozen = {"encoder": self.encoder, "torso": self}.get(still)
        if frozen is not None:
            frozen.requires_grad_(False)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return features [B, 6]."""
        with torch.set_grad_enabled(self._learns and torch.is_grad_enabled()):
            return torch.as_tensor(self.adapter(self.encoder(observation)))


@pytest.mark.parametrize("still", ["encoder", "torso", "no gradients"])
@pytest.mark.parametrize(
    "algorithm, changes",
    [
        *((name, {}) for name, *_ in OWN_NETWORK),
        ("dqn", {"optimizer": "rmsprop", "weight_decay": 0.1}),
        ("ddpg", {"critic_weight_decay": 0.1}),
    ],
)
def test_frozen_parameters_stay_while_the_others_learn(algorithm: str, changes: dict[str, Any], still: str) -> None:
    """In every network of an agent, its targets and averages included; they are saved and sent to actors as well.

    Parameters without a gradient are taken.
    """
    config: Any
    config, env_spec = CASES[f"{algorithm}_own_network"]
    period = {"target_update_period": 2} if hasattr(config, "target_update_period") else {}
    own = {"network": f"{__name__}:Pretrained", "network_settings": {"still": still}}
    config = dataclasses.replace(config, **own, **period, **changes)
    agent, policy = build_agent(config, env_spec, seed=1), build_policy(config, env_spec, seed=2)
    before = copy.deepcopy(agent.state_dict())
    for number, group in enumerate((SINGLE_PROCESS, WithIdleRank())):
        agent.set_process_group(group)
        agent.update(sampled_batch(agent, config, env_spec, 16, torch.Generator().manual_seed(number)), torch.ones(16))
    resumed = build_agent(config, env_spec, seed=3)
    resumed.load_state_dict(agent.state_dict())
    policy.load(resumed.policy_state())
    networks = [
        name for name, state in before.items() if isinstance(state, dict) and any("torso." in key for key in state)
    ]
    frozen = {"encoder": ("torso.encoder.",), "torso": ("torso.encoder.", "torso.adapter.")}.get(still, ())
    for name in networks:
        after = resumed.state_dict()[name]
        moved = {key for key, value in before[name].items() if not torch.equal(value, after[key])}
        assert [key for key in moved if any(part in key for part in frozen)] == []
        assert {key for key in after if "torso." not in key} & moved
        assert still != "encoder" or {key for key in after if "torso.adapter." in key} <= moved


def test_xavier_initialisation_leaves_a_frozen_encoder() -> None:
    """It was trained before."""
    config = DQNConfig(network=f"{__name__}:Pretrained", network_settings={"still": "encoder"}, hidden_sizes=(16,))
    xavier = dataclasses.replace(config, initialisation="xavier")
    plain, redrawn = (build_agent(each, VECTOR, seed=1).policy_state() for each in (config, xavier))
    changed = {key for key, value in plain.items() if not torch.equal(value, redrawn[key])}
    assert "torso.adapter.weight" in changed
    assert [key for key in changed if "encoder" in key] == []


class Normed(nn.Module):
    """The numbers of an observation, normalized by their batch, or in evaluation by running statistics."""

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.outputs = env_spec.observation_size
        self.norm = nn.BatchNorm1d(self.outputs)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return features [B, outputs]."""
        return torch.as_tensor(self.norm(flat(observation)))


@pytest.mark.parametrize("algorithm", [name for name, *_ in OWN_NETWORK])
def test_buffers_of_every_network_follow_the_batches(algorithm: str) -> None:
    """Those of targets and averages, too, by which actors or evaluation may act."""
    config: Any
    config, env_spec = CASES[f"{algorithm}_own_network"]
    config = dataclasses.replace(config, network=f"{__name__}:Normed", network_settings={})
    agent = build_agent(config, env_spec, seed=1)
    agent.update(sampled_batch(agent, config, env_spec, 16, torch.Generator().manual_seed(0)), torch.ones(16))
    networks = [state for state in agent.state_dict().values() if isinstance(state, dict)]
    counts = [value for state in networks for key, value in state.items() if str(key).endswith("num_batches_tracked")]
    assert len(counts) >= len([name for name in agent.state_dict() if "target" in name or "average" in name]) + 1
    assert min(counts) > 0


@pytest.mark.parametrize("algorithm", [name for name, *_ in OWN_NETWORK])
def test_buffers_are_not_rounded_for_actors(algorithm: str) -> None:
    """A mean of 5,000 would be off by up to 2 in float16, four deviations of these observations."""
    config: Any
    config, env_spec = CASES[f"{algorithm}_own_network"]
    config = dataclasses.replace(config, network=f"{__name__}:Normed", network_settings={})
    agent = build_agent(config, env_spec, seed=1)
    torsos = [state for state in agent.state_dict().values() if isinstance(state, dict)]
    for mean in (value for state in torsos for name, value in state.items() if str(name).endswith("norm.running_mean")):
        mean.fill_(5_001.3)
    state = half({name: value.numpy() for name, value in agent.policy_state().items()})
    assert state is not None
    means = [value for name, value in state.items() if name.endswith("torso.norm.running_mean")]
    assert means
    for mean in means:
        assert np.array_equal(mean.astype(np.float32), np.full(mean.shape, 5_001.3, np.float32))
    build_policy(config, env_spec).load({name: torch.from_numpy(value) for name, value in state.items()})


def test_parameters_are_decided_by_the_seed_alone() -> None:
    """Although the torso draws as torch's layers do; the generator that they use is left as it was."""
    config, env_spec = CASES["td3_own_network"]
    state = torch.get_rng_state()
    build_torso("networks:ResidualTorso", env_spec, torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)
    first = build_agent(config, env_spec, seed=1).policy_state()
    torch.rand(5)
    again, other = (build_agent(config, env_spec, seed=seed).policy_state() for seed in (1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["actor.torso.inlet.weight"], other["actor.torso.inlet.weight"])
    assert not torch.equal(first["actor.torso.inlet.weight"], first["critic.torso.inlet.weight"])


def test_written_out_gradients_of_sac_go_on_through_the_torso() -> None:
    """Those of torso and layers are autograd's, and so are those of the actions, to six digits."""
    config = SACConfig(network="networks:ResidualTorso", network_settings={"width": 12}, hidden_sizes=(16, 8))
    rng = torch.Generator().manual_seed(0)
    actor, critic = build_actor(config, CONTINUOUS, rng), build_critic(config, CONTINUOUS, rng)
    observation, action = torch.randn((6, 3), generator=rng), torch.rand((6, 2), generator=rng)
    flowing = torch.randn((2, 6, 1), generator=rng)
    assert isinstance(critic, TorsoEnsembleMLP)
    with torch.no_grad():
        activations = critic.activations(observation, action)
        found = critic.parameter_gradients(activations, flowing)
        activations = critic.activations(observation, action)
        found_action = critic.input_gradient(activations, flowing, last=2).sum(dim=0)
        torch.testing.assert_close(critic(observation, action), activations[-1].output)
    critic.requires_grad_(True)
    action.requires_grad_(True)
    wanted = torch.autograd.grad(
        critic.activations(observation, action)[-1].output, [*critic.layers.parameters(), action], flowing
    )
    torso_free = len(list(critic.layers.parameters()))
    for gradient, expected in zip(found[:torso_free], wanted[:torso_free], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found_action, wanted[-1], rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        passed = actor.activations(observation)
        assert len(list(actor.parameters())) == len(actor.parameter_gradients(passed, passed[-1].output))
    _check_torso_gradients(critic, observation, action.detach(), flowing, found[torso_free:])


def _check_torso_gradients(
    critic: TorsoEnsembleMLP,
    observation: torch.Tensor,
    action: torch.Tensor,
    flowing: torch.Tensor,
    found: list[torch.Tensor],
) -> None:
    """Compare with a numerical derivative of the loss `(flowing * q).sum()` along each parameter's own gradient."""
    parameters = list(critic.torso.parameters())
    for parameter, gradient in zip(parameters, found, strict=True):
        direction = gradient / gradient.norm()
        values = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 1e-2)
                values.append(float((flowing * critic(observation, action)).sum()))
                parameter.sub_(direction, alpha=sign * 1e-2)
        slope = (values[0] - values[1]) / 2e-2
        assert slope == pytest.approx(float(gradient.norm()), rel=0.05)


@pytest.mark.usefixtures("own_torsos")
@pytest.mark.parametrize(
    "name,settings,message",
    [
        ("odd_torsos:Torso", {"width": 3}, "network_settings {'width': 3} 'odd_torsos:Torso'"),
        ("odd_torsos:Torsi", {}, "odd_torsos 'Torsi' 'Torso'"),
        ("odd_torsos:number", {}, "odd_torsos:number"),
        ("odd_torsos:no_module", {}, "torch.nn.Module"),
        ("odd_torsos:fussy", {"width": 3}, "{'width': 3} ValueError: width is 3, must be even"),
        ("odd_torsos:Torso", {"outputs": 0}, "outputs None"),
        ("odd_torsos:Torso", {"outputs": 5}, "torch.float32 (2, 4) float32 (2, 3)"),
        ("odd_torsos:Torso", {"shape": "flat"}, "torch.float32 (2,) torch.float32 (2, 4)"),
        ("odd_torsos:Torso", {"shape": "tuple"}, "tuple"),
        ("odd_torsos:Torso", {"shape": "integers"}, "torch.int64"),
        ("odd_torsos:Torso", {"shape": "double"}, "layer.bias float32"),
        ("odd_torsos:Torso", {"shape": "mask"}, "mask persistent=False"),
        ("odd_torsos:WithWords", {}, "_extra_state tensor buffer"),
        ("odd_torsos:Torso", {"shape": "wide"}, "float32 (2, 3) RuntimeError mat1"),
        ("mlp", {"width": 3}, "network_settings {'width': 3} 'mlp'"),
    ],
)
def test_torso_that_does_not_fit_is_refused(name: str, settings: dict[str, object], message: str) -> None:
    """The message says what was made of what, and what it must be."""
    with pytest.raises(ConfigError, match=naming(message)):
        build_torso(name, VECTOR, torch.Generator(), settings)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_torsos")
def test_mask_that_is_not_saved_may_be_infinite() -> None:
    """Neither checkpoints nor actors get it."""
    build_torso("odd_torsos:Torso", VECTOR, torch.Generator(), {"shape": "unsaved mask"})


@pytest.mark.usefixtures("own_torsos")
def test_torso_in_the_working_directory_is_found_by_settings() -> None:
    """In a config file like any other setting; a module that is not there is refused at once."""
    agent = {"algorithm": "sac", "network": "odd_torsos:Torso", "network_settings": {"outputs": 4, "shape": "good"}}
    config = load_config({"agent": agent})
    build_agent(config.agent, CONTINUOUS)
    with pytest.raises(ConfigError, match=naming("network 'even_torsos:Torso' 'even_torsos'")):
        load_config({"agent": agent | {"network": "even_torsos:Torso"}})


def test_settings_hold_numbers_words_and_lists() -> None:
    """As YAML reads them, in a file and on the command line."""
    settings = {"width": 3, "rate": 0.5, "name": "x", "norm": True, "sizes": [3, 4]}
    agent = load_config({"agent": {"algorithm": "td3", "network_settings": settings}}).agent
    assert agent.network_settings == settings | {"sizes": (3, 4)}  # type: ignore[attr-defined]
    words = "--agent.algorithm td3 --agent.network-settings width 3 rate 0.5 name x norm true"
    for sizes in (["--agent.network-settings.sizes", "3", "4"], ["--agent.network-settings", "sizes", "[3, 4]"]):
        given = load(RunConfig, [*words.split(), *sizes], prog="train", description="").agent
        assert given.network_settings == agent.network_settings  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"agent\.network_settings\.width"):
        load_config({"agent": {"algorithm": "td3", "network_settings": {"width": None}}})


_LEFT_OUT = [(name, network) for name in ("sac", "td3", "ddpg", "d4pg") for network in ("auto", "mlp")]
"""Algorithms whose networks of vectors have no torso."""


@pytest.mark.parametrize("network", ["auto", "mlp"])
@pytest.mark.parametrize("algorithm", algorithms())
def test_settings_of_a_torso_that_has_none_are_refused(algorithm: str, network: str) -> None:
    """A new run by every algorithm; `auto` is `mlp` for vectors. Most cannot build it either."""
    agent = {"algorithm": algorithm, "network": network, "network_settings": {"width": 3}}
    config: Any = load_config({"agent": agent}).agent
    spec = CONTINUOUS if config.actions == "continuous" else VECTOR
    refusal = naming("agent.network_settings {'width': 3} 'mlp'")
    with pytest.raises(ConfigError, match=refusal):
        check_settings(network, config.network_settings, spec)
    if (algorithm, network) not in _LEFT_OUT:
        with pytest.raises(ConfigError, match=refusal):
            build_agent(config, spec)


@pytest.mark.parametrize("algorithm, network", _LEFT_OUT)
def test_policy_that_was_trained_with_settings_of_no_effect_still_acts(algorithm: str, network: str) -> None:
    """Only a new run is refused them."""
    agent = {"algorithm": algorithm, "network": network, "network_settings": {"width": 3}}
    config = load_config({"agent": agent}).agent
    build_policy(config, CONTINUOUS).load(build_agent(config, CONTINUOUS).policy_state())


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg", "d4pg"])
def test_convolutions_serve_continuous_actions(algorithm: str) -> None:
    """A torso for images that comes with the project stands before actor and critic, which then see images."""
    pixels = EnvSpec(COLOURS.observation_shape, "uint8", frame_stack=2, action_shape=(2,))
    config = load_config({"agent": {"algorithm": algorithm, "network": "impala"}}).agent
    agent, policy = build_agent(config, pixels), build_policy(config, pixels)
    update = agent.update(sampled_batch(agent, config, pixels, 3, torch.Generator().manual_seed(0)), torch.ones(3))
    assert bool(torch.isfinite(update.priority).all())
    policy.load(agent.policy_state())
    seen = np.zeros((3, 2, *COLOURS.observation_shape), np.uint8)
    assert policy.act(policy_input(seen), evaluation=True).action.shape == (3, 2)


class _Mixed(nn.Module):
    """Computes in float32 whatever its parameters are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return features; fails if the layer is not float32."""
        return torch.as_tensor(self.layer(observation.float()))


def test_torso_that_does_not_follow_its_parameters_format_acts_in_float32() -> None:
    """The layers behind it would want bfloat16, which is refused if it is asked for."""
    observation = torch.zeros((2, 3), dtype=torch.uint8)
    assert acting_dtype(_Mixed(), observation, "auto") == torch.float32
    with pytest.raises(ConfigError, match=naming("'bfloat16' actor.precision inference.precision auto float32")):
        acting_dtype(_Mixed(), observation, "bfloat16")


class _Float32Alone(nn.Module):
    """Refuses images in any other format."""

    def __init__(self, refusal: Exception) -> None:
        super().__init__()
        self.layer, self._refusal = nn.Linear(3, 4), refusal

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return features; raises if the layer is not float32."""
        if self.layer.weight.dtype != torch.float32:
            raise self._refusal
        return torch.as_tensor(self.layer(observation.float()))


@pytest.mark.parametrize("refusal", [AssertionError(), TypeError("half"), ValueError("half"), KeyError("half")])
def test_torso_that_refuses_bfloat16_acts_in_float32(refusal: Exception) -> None:
    """Whatever it raises."""
    network, observation = _Float32Alone(refusal), torch.zeros((2, 3), dtype=torch.uint8)
    assert acting_dtype(network, observation, "auto") == torch.float32
    with pytest.raises(ConfigError, match=naming("'bfloat16' actor.precision", refusal)):
        acting_dtype(network, observation, "bfloat16")


def test_own_network_is_a_setting_of_dqn_as_before() -> None:
    """A dotted path without a colon still names a module with `build`."""
    with pytest.raises(ConfigError, match=naming("tidemill.rl.networks.layers.image 'build'")):
        build_agent(DQNConfig(network="tidemill.rl.networks.layers.image"), VECTOR)
