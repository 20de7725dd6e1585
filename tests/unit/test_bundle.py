"""A bundle is read back as it was written, acts like the policy it was made from, and runs no code unasked."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
import yaml

import tidemill
from tests.support.damage import flip
from tests.support.naming import naming
from tidemill.bundle import files
from tidemill.bundle.files import Bundle, read_bundle, read_policy_params, write_bundle
from tidemill.bundle.onnx_report import OnnxReport
from tidemill.config.load import newer_writer
from tidemill.config.presets import find_config
from tidemill.envs.observations import ObservationFormat, observation_format
from tidemill.errors import AlreadyExists, ConfigError, DataLoss, FatalError, InvalidArgument, NotFound
from tidemill.observation_parts import packed, unpack
from tidemill.params.blob import pack
from tidemill.params.document import from_version, seal
from tidemill.params.version import Encoding, Params, ParamsMetadata, Precision, Version
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.scores import Score
from tidemill.services.evaluator.csv_logs import ScoreLog
from tidemill.services.evaluator.episode_runner import EpisodeRunner
from tidemill.services.evaluator.offline import main as evaluate
from tidemill.services.tools.export import export, model_card
from tidemill.types import EnvSpec, ObservationPart

_SETTINGS: dict[str, Any] = {
    "run": {"name": "small", "root": "/home/somebody/runs", "seed": 3},
    "env": {"id": "Pendulum-v1"},
    "agent": {"algorithm": "sac", "hidden_sizes": [8]},
    "learner": {"publish_every": 7, "server": {"address": "127.0.0.1:7403"}},
    "cluster": {"replay": ["127.0.0.1:7401"]},
}
_RESULT = {"solved": True, "video": "videos/best.mp4", "best_version": 5}
_SPEC = EnvSpec(observation_shape=(3,), observation_dtype="float32", action_shape=(1,))


def _params(settings: dict[str, Any], spec: EnvSpec, seed: int = 1) -> Params:
    import hashlib

    agent = build_agent(tidemill.load_config(settings).agent, spec, seed=seed)
    metadata = ParamsMetadata(settings["agent"]["algorithm"], "Pendulum-v1", 10, 40)
    blob = pack({name: value.numpy() for name, value in agent.policy_state().items()}, metadata)
    encoding = Encoding(Precision.FULL, len(blob), hashlib.sha256(blob).digest())
    created = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    return Params(Version(5, 4, 1, created, metadata, (encoding,)), Precision.FULL, blob)


def _bundle(folder: Path, settings: dict[str, Any] = _SETTINGS, spec: EnvSpec = _SPEC) -> Bundle:
    """Write a run's settings and a bundle of them; return what the bundle was made of."""
    run = folder / "run"
    (run / "videos").mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    (run / "scores.csv").write_text("scores")
    (run / "videos/best.mp4").write_bytes(b"film")
    made = Bundle(_params(settings, spec), spec, _RESULT, {"python": "3"})
    write_bundle(made, run, folder / "bundle", "# card")
    return made


def test_bundle_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Parameters, shapes, result and versions come back; what a person looks at lies beside them."""
    made = _bundle(tmp_path)
    found = read_bundle(tmp_path / "bundle")
    assert (found.params, found.env_spec) == (made.params, made.env_spec)
    assert (found.result, found.versions) == (_RESULT, {"python": "3"})
    assert datetime.datetime.fromisoformat(found.exported).tzinfo is not None
    names = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert names == {"bundle.json", "policy.safetensors", "config.yaml", "README.md", "scores.csv", "policy.mp4"}


@pytest.mark.parametrize("result", [{}, {**_RESULT, "best_version": 4}, {**_RESULT, "video": None}])
def test_film_of_another_version_is_not_shown(result: dict[str, Any], tmp_path: Path) -> None:
    """A run films its best version. Nothing says which version another video shows."""
    made = replace(_bundle(tmp_path), result=result)
    (tmp_path / "run/videos/v5.mp4").touch()
    write_bundle(made, tmp_path / "run", tmp_path / "other", "# card")
    names = {path.name for path in (tmp_path / "other").iterdir()}
    assert names == {"bundle.json", "policy.safetensors", "config.yaml", "README.md", "scores.csv"}


def test_settings_of_a_machine_are_not_passed_on(tmp_path: Path) -> None:
    """Folders, addresses and processes stay; what the policy was trained with goes along, its actors too."""
    sources = {"walks": {"replay": ["127.0.0.1:7411"], "fraction": 0.25}}
    learner = {**_SETTINGS["learner"], "sources": sources}
    _bundle(
        tmp_path,
        {**_SETTINGS, "learner": learner, "launcher": {"actors": 18, "learners": 2, "inference": 2, "view": "quiet"}},
    )
    text = (tmp_path / "bundle/config.yaml").read_text()
    assert "somebody" not in text
    assert "127.0.0.1" not in text
    settings = yaml.safe_load(text)
    assert settings["learner"] == {"publish_every": 7, "sources": {"walks": {"fraction": 0.25}}}
    assert settings["launcher"] == {"actors": 18, "learners": 2}
    assert tidemill.load_config(tmp_path / "bundle/config.yaml").run.seed == 3


def test_settings_of_a_bundle_name_the_tidemill_that_wrote_them(tmp_path: Path) -> None:
    """An older one can then say that it is too old for them."""
    made = replace(_bundle(tmp_path), versions={"tidemill": "99.0"})
    write_bundle(made, tmp_path / "run", tmp_path / "other", "# card")
    assert newer_writer(tmp_path / "other/config.yaml") == "99.0"
    assert newer_writer(tmp_path / "bundle/config.yaml") == ""


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A folder that exists is left as it is, and nothing half written stays behind."""
    made = _bundle(tmp_path)
    with pytest.raises(AlreadyExists, match="exists"):
        write_bundle(made, tmp_path / "run", tmp_path / "bundle", "other")
    with pytest.raises(ConfigError, match="No such file"):
        write_bundle(made, tmp_path / "nowhere", tmp_path / "second", "card")
    with pytest.raises(ConfigError, match=naming("run/scores.csv/policy Not a directory")):
        write_bundle(made, tmp_path / "run", tmp_path / "run/scores.csv/policy", "card")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "bundle"}


def test_export_that_another_was_faster_than_leaves_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two at once writes its own part; one is written, and the other says that there is something already."""
    made = _bundle(tmp_path)

    def slow(run: Path, bundle: Bundle) -> dict[str, Path]:
        monkeypatch.undo()
        write_bundle(made, run, tmp_path / "twice", "fast")
        return files.find_shown(run, bundle)

    monkeypatch.setattr(files, "find_shown", slow)
    with pytest.raises(AlreadyExists, match="exists"):
        write_bundle(made, tmp_path / "run", tmp_path / "twice", "slow")
    assert (tmp_path / "twice/README.md").read_text() == "fast"
    assert read_bundle(tmp_path / "twice").params == made.params
    assert {path.name for path in tmp_path.iterdir()} == {"run", "bundle", "twice"}


@pytest.mark.parametrize("file", ["bundle.json", "policy.safetensors"])
def test_corrupt_bundle_is_refused(tmp_path: Path, file: str) -> None:
    """One flipped bit anywhere in the document or the parameters is noticed before anything is used."""
    _bundle(tmp_path)
    flip(tmp_path / "bundle" / file)
    with pytest.raises(DataLoss, match=naming(file)):
        read_bundle(tmp_path / "bundle")


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    """A bundle of a later format asks for a later version instead of being misread."""
    _bundle(tmp_path)
    path = tmp_path / "bundle/bundle.json"
    path.write_bytes(seal(json.loads(path.read_text())["content"] | {"format": 2}))
    with pytest.raises(FatalError, match=naming("bundle.json 2 1")):
        read_bundle(tmp_path / "bundle")


def _reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the document of a bundle as anybody can: its checksum is nobody's signature."""
    path = folder / "bundle.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    path.write_bytes(seal(content))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda content: content.pop("version"), "'version'"),
        (lambda content: content.pop("exported"), "'exported'"),
        (lambda content: content.update(env_spec=[]), "list"),
        (lambda content: content["env_spec"].update(colour="red"), "'colour'"),
        (lambda content: content["env_spec"].update(observation_shape="wide"), "'wide'"),
        (lambda content: content["env_spec"].update(observation_shape=["a"]), "('a',)"),
        (lambda content: content["env_spec"].update(num_actions="4"), "num_actions is '4'"),
        (lambda content: content["env_spec"].update(frame_stack=None), "frame_stack is None"),
        (lambda content: content["env_spec"].update(masks_actions=1), "masks_actions is 1"),
        (lambda content: content["env_spec"].update(observation_parts=[1]), "int"),
        (lambda content: content["env_spec"].update(observation_parts=[["a", "uint8", [2.5]]]), "(2.5,)"),
        (lambda content: content["env_spec"].update(observation_parts=[["a", "uint9", [2]]]), "dtype 'uint9'"),
        (lambda content: content["env_spec"].update(observation_dtype="object"), "observation_dtype 'object'"),
        (lambda content: content["env_spec"].update(observation_shape=[-8]), "observation_shape (-8,)"),
        (lambda content: content["env_spec"].update(observation_shape=8), "observation_shape 8"),
        (lambda content: content["env_spec"].update(action_shape=[-1]), "action_shape (-1,)"),
        (lambda content: content["env_spec"].update(num_actions=-4), "num_actions -4"),
        (lambda content: content["env_spec"].update(frame_stack=0), "frame_stack 0"),
        (lambda content: content["env_spec"].update(observation_shape=[0]), "observation_shape (0,)"),
        (lambda content: content["version"].update(encodings=[]), "fields"),
        (lambda content: content["version"].update(version="../5"), "version '../5'"),
        (lambda content: content["version"]["metadata"].update(learner_steps="many"), "learner_steps 'many'"),
        (lambda content: content["version"]["metadata"].update(algorithm=["sac"]), "algorithm ['sac']"),
    ],
)
def test_sealed_document_with_other_fields_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    """In one line that names the file: a checksum says nothing about who wrote it, or with which version."""
    _bundle(tmp_path)
    _reseal(tmp_path / "bundle", change)
    with pytest.raises(DataLoss, match=naming(tmp_path / "bundle/bundle.json", message)):
        read_bundle(tmp_path / "bundle")


def test_bundle_holds_one_version(tmp_path: Path) -> None:
    """Its own number may be asked for, another version or a tag is not there."""
    made = _bundle(tmp_path)
    assert read_policy_params(tmp_path / "bundle", 5) == made.params
    with pytest.raises(NotFound, match=naming("5 'latest'")):
        read_policy_params(tmp_path / "bundle", "latest")


def test_loaded_policy_acts_like_the_one_that_was_trained(tmp_path: Path) -> None:
    """For one observation and for several it chooses what the agent's own policy chooses from these parameters."""
    _bundle(tmp_path)
    policy = tidemill.load_policy(tmp_path / "bundle")
    config = tidemill.load_config(_SETTINGS | {"cluster": {}}).agent
    original = build_policy(config, _SPEC)
    original.load(build_agent(config, _SPEC, seed=1).policy_state())
    observation = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    zeros = np.zeros((4, 1), np.float32)
    wanted = original.act(
        tidemill.PolicyInput(observation, np.ones(4, bool), zeros, zeros[:, 0], np.zeros((4, 0), np.float32)),
        evaluation=True,
    ).action
    np.testing.assert_array_equal(policy.act(observation), wanted)
    policy.reset()
    np.testing.assert_allclose(policy.act(observation[0]), wanted[0], rtol=1e-6)


def test_actions_fit_the_users_environment(tmp_path: Path) -> None:
    """With an action space, actions of [-1, 1] are scaled to its bounds; one of another shape is refused."""
    _bundle(tmp_path)
    observation = np.ones(3, np.float32)
    plain = tidemill.load_policy(tmp_path / "bundle").act(observation)
    env = gymnasium.make("Pendulum-v1")
    scaled = tidemill.load_policy(tmp_path / "bundle", action_space=env.action_space).act(observation)
    np.testing.assert_allclose(scaled, 2 * plain, rtol=1e-6)
    with pytest.raises(ConfigError, match=naming("(1,)")):
        tidemill.load_policy(tmp_path / "bundle", action_space=gymnasium.spaces.Discrete(3))


def test_exploring_action_is_within_its_bounds(tmp_path: Path) -> None:
    """Most draws of PPO's wide Gaussian are beyond -1 and 1: they are returned as the environment would take them."""
    settings, _ = _recurrent("ppo")
    settings |= {"env": _SETTINGS["env"], "agent": settings["agent"] | {"initial_log_std": 3.0}}
    _bundle(tmp_path, settings)
    action = tidemill.load_policy(tmp_path / "bundle").act(np.zeros((100, 3)), explore=True)
    assert action.dtype == np.float32
    assert (action.min(), action.max()) == (-1.0, 1.0)


@pytest.mark.parametrize("shape, stack", [((3, 84, 84), 1), ((12, 84, 84), 1), ((4, 84, 84, 3), 1), ((3, 84, 84), 2)])
def test_policy_of_images_with_their_channels_first_still_acts(
    shape: tuple[int, ...], stack: int, tmp_path: Path
) -> None:
    """Only a new run is refused them: this one was trained by the torso that `auto` chose."""
    settings = _SETTINGS | {"agent": {"algorithm": "dqn", "hidden_sizes": [8]}}
    _bundle(tmp_path, settings, EnvSpec(shape, "uint8", frame_stack=stack, num_actions=3))
    action = tidemill.load_policy(tmp_path / "bundle").act(np.zeros((2, *shape), np.uint8))
    assert np.shape(action) == (2,)


def _recurrent(algorithm: str) -> tuple[dict[str, Any], EnvSpec]:
    """Return settings and shapes of a recurrent policy."""
    is_discrete = algorithm in ("r2d2", "ppo")
    settings = _SETTINGS | {
        "env": {"id": "CartPole-v1" if is_discrete else "Pendulum-v1"},
        "agent": {"algorithm": algorithm, "network": "mlp", "hidden_sizes": [8], "lstm_size": 8},
    }
    if algorithm == "ppo":
        settings |= {"table": {"sampler": "fifo", "min_size": 4, "max_items": 16, "chunk_length": 43}}
        settings |= {"learner": {"updates_per_env_step": 0}}
    spec = EnvSpec((4,), "float32", num_actions=2) if is_discrete else EnvSpec((3,), "float32", action_shape=(1,))
    return settings, spec


@pytest.mark.parametrize("algorithm", ["r2d2", "ppo", "sac", "td3"])
def test_recurrent_policy_remembers_until_it_is_reset(algorithm: str, tmp_path: Path) -> None:
    """Its choices depend on the episode so far, and on nothing before `reset` or its first observation."""
    settings, spec = _recurrent(algorithm)
    _bundle(tmp_path, settings, spec)
    policy = tidemill.load_policy(tmp_path / "bundle")
    seen = np.random.default_rng(0).normal(size=(200, *spec.observation_shape)).astype(np.float32)
    is_first = np.arange(200) % 40 == 0

    def play(*, forgets: bool = False, scales: bool = False) -> list[float]:
        policy.reset()
        actions = []
        for observation, first in zip(seen, is_first, strict=True):
            action = policy.act(observation, reward=1.0, is_first=first)
            actions.append(float(np.squeeze(action)))
            if scales:
                action *= 100
            if forgets:
                policy.reset()
        return actions

    remembering, forgetting = play(), play(forgets=True)
    assert play() == play(scales=True) == remembering  # a program may do with an action what it likes
    assert remembering != forgetting
    assert [remembering[i] for i in range(0, 200, 40)] == [forgetting[i] for i in range(0, 200, 40)]


@pytest.mark.parametrize("algorithm", ["r2d2", "ppo", "sac", "td3"])
def test_recurrent_policy_wants_the_rewards_that_it_was_trained_with(algorithm: str, tmp_path: Path) -> None:
    """Without them it would act as if all were 0. An episode's first observation has none; PPO sees none."""
    settings, spec = _recurrent(algorithm)
    _bundle(tmp_path, settings, spec)
    policy = tidemill.load_policy(tmp_path / "bundle")
    seen = np.ones((2, *spec.observation_shape), np.float32)
    policy.act(seen)
    policy.act(seen, is_first=True)
    if algorithm == "ppo":
        policy.act(seen)
        return
    with pytest.raises(InvalidArgument, match=naming("reward None 0 sees_rewards False")):
        policy.act(seen, is_first=[True, False])
    assert len(policy(seen, [1.0, 2.0])) == 2


@pytest.mark.parametrize("reward", [np.nan, [1.0, np.inf], 1e39])
def test_recurrent_policy_refuses_a_reward_that_is_not_finite(reward: object, tmp_path: Path) -> None:
    """Its state would be NaN to the end of the episode; the refused call is not remembered."""
    settings, spec = _recurrent("r2d2")
    _bundle(tmp_path, settings, spec)
    fresh, policy = (tidemill.load_policy(tmp_path / "bundle") for _ in range(2))
    seen = np.random.default_rng(0).normal(size=(3, 2, *spec.observation_shape)).astype(np.float32)
    wanted = [fresh.act(rows, reward=1.0) for rows in seen]
    found = [policy.act(seen[0], reward=1.0)]
    with pytest.raises(InvalidArgument, match=naming("reward", np.asarray(reward).tolist(), "0")):
        policy.act(seen[1], reward=reward)  # type: ignore[arg-type]
    found += [policy.act(rows, reward=1.0) for rows in seen[1:]]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["reward", "is_first"])
def test_reward_and_beginning_are_of_one_or_each_environment(name: str, tmp_path: Path) -> None:
    """Another number of them, or a column, is refused with both shapes, also at the first call."""
    _bundle(tmp_path)
    policy = tidemill.load_policy(tmp_path / "bundle")
    for _ in range(2):
        for shape in ((2, 1), (3,)):
            with pytest.raises(InvalidArgument, match=naming(name, shape, "(2,)")):
                policy.act(np.zeros((2, 3)), **{name: np.zeros(shape)})  # type: ignore[arg-type]
        policy.act(np.zeros((2, 3)), **{name: np.zeros(2)})  # type: ignore[arg-type]


def test_policy_plays_by_its_card_as_in_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent policy, too: the loop hands on the rewards that it looks at."""
    settings, spec = _recurrent("sac")
    made = _bundle(tmp_path, settings, spec)
    config = tidemill.load_config({**settings, "cluster": {}})
    card = model_card(made, config, None, [], [], OnnxReport("no"))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path / "bundle")
    names: dict[str, Any] = {}
    exec(card.partition("```python")[2].partition("```")[0].replace("1000", "200"), names)
    with closing(EpisodeRunner(config)) as runner:  # type: ignore[arg-type]
        evaluation = runner.run(made.params, [0])
    assert evaluation is not None
    assert [episode.episode_return for episode in names["step"].episodes] == evaluation.returns.tolist()


def test_wrong_observations_are_explained(tmp_path: Path) -> None:
    """Another shape, or another number of environments in the middle of episodes, says what is allowed."""
    _bundle(tmp_path)
    policy = tidemill.load_policy(tmp_path / "bundle")
    for wrong in (np.zeros(4), np.zeros((2, 4)), np.zeros((0, 3)), 1.0):
        with pytest.raises(InvalidArgument, match=naming("(3,) N")):
            policy.act(wrong)
    for no_number in (None, "x", [None]):
        with pytest.raises(InvalidArgument, match=naming("dtype numbers float32")):
            policy.act(no_number)  # type: ignore[arg-type]
    policy.act(np.zeros((2, 3)))
    with pytest.raises(InvalidArgument, match=naming("3 2")):
        policy.act(np.zeros((3, 3)))


@pytest.mark.parametrize(
    "env, observation, remedy",
    [
        ({"flatten": True}, 3, "flatten(env.observation_space, observation)"),
        ({"flatten": True}, {"a": 1, "b": 0}, "flatten(env.observation_space, observation)"),
        ({"flatten": True}, (1, np.zeros(2)), "flatten(env.observation_space, observation)"),
        ({"observation_indices": [0, 2, 4]}, np.zeros(5), "observation[..., [0, 2, 4]]"),
    ],
)
def test_observation_that_settings_change_for_training_is_explained(
    tmp_path: Path,
    env: dict[str, Any],
    observation: Any,  # noqa: ANN401 - of any kind
    remedy: str,
) -> None:
    """The message has the line that makes the observation that the policy was trained with."""
    _bundle(tmp_path, {**_SETTINGS, "env": {"id": "Pendulum-v1", **env}})
    with pytest.raises(InvalidArgument, match=re.escape(remedy)) as raised:
        tidemill.load_policy(tmp_path / "bundle").act(observation)
    assert "allowed: (3,), or N of them" in str(raised.value)


@pytest.mark.parametrize(
    "env, sizes",
    [
        ({"flatten": True}, {"board": 2, "hand": 1}),
        ({"flatten": True, "observation_indices": [0, 2, 4]}, {"board": 3, "hand": 2}),
        ({"observation_indices": [0, 2, 4]}, {"board": 5}),
    ],
)
def test_advice_on_an_observation_with_its_mask_can_be_followed(
    env: dict[str, Any], sizes: dict[str, int], tmp_path: Path
) -> None:
    """Training took the mask out before it flattened the rest or chose from it."""
    settings = {**_SETTINGS, "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8]}}
    settings["env"] = {"id": "CartPole-v1", "action_mask": "observation.legal", **env}
    _bundle(tmp_path, settings, EnvSpec((3,), "float32", num_actions=4, masks_actions=True))
    policy = tidemill.load_policy(tmp_path / "bundle")
    parts = {name: gymnasium.spaces.Box(-1, 1, (size,)) for name, size in sizes.items()}
    space = gymnasium.spaces.Dict({**parts, "legal": gymnasium.spaces.MultiBinary(4)})
    observation = {**space.sample(), "legal": np.array([0, 0, 1, 0], np.int8)}
    with pytest.raises(InvalidArgument) as refused:
        policy.act(observation)
    arguments = str(refused.value).partition(" give ")[2]
    names = {"act": policy.act, "env": Mock(observation_space=space), "gymnasium": gymnasium}
    exec(f"action = act({arguments})", names | {"observation": observation}, chosen := dict[str, Any]())
    assert chosen["action"] == 2


@pytest.mark.parametrize(
    "value, message",
    [(np.nan, "NaN"), (1e39, "infinite"), (2**24 + 1, "int64 16777217"), ("x", "float32")],
)
def test_policy_does_not_act_on_what_is_no_observation(tmp_path: Path, value: object, message: str) -> None:
    """It would choose an action all the same."""
    _bundle(tmp_path)
    policy = tidemill.load_policy(tmp_path / "bundle")
    with pytest.raises(InvalidArgument, match=naming(message)):
        policy.act(np.array([value] * 3))


@pytest.mark.parametrize("refused", [{"action_mask": None}, {"observation": np.full((20, 3), np.nan)}])
def test_refused_call_leaves_no_trace(refused: dict[str, Any], tmp_path: Path) -> None:
    """The next one is the first of its episode: its frame fills the stack, and there may be fewer environments."""
    settings = {**_SETTINGS, "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8]}}
    settings["env"] = {"id": "CartPole-v1", "action_mask": "info.action_mask"}
    _bundle(tmp_path, settings, EnvSpec((3,), "float32", frame_stack=4, num_actions=9, masks_actions=True))
    seen = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    mask = np.ones((20, 9), np.bool_)
    for count in (20, 2):
        fresh, policy = (tidemill.load_policy(tmp_path / "bundle") for _ in range(2))
        with pytest.raises(InvalidArgument):
            policy.act(**{"observation": seen, "action_mask": mask, **refused})
        expected = fresh.act(seen[:count], action_mask=mask[:count])
        assert policy.act(seen[:count], action_mask=mask[:count]).tolist() == expected.tolist()


def test_policy_of_masked_actions_wants_the_masks(tmp_path: Path) -> None:
    """It acts legally, for one environment and for several, and says what is missing or wrong."""
    settings = {**_SETTINGS, "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8]}}
    settings["env"] = {"id": "CartPole-v1", "action_mask": "info.action_mask"}  # which names no code
    made = _bundle(tmp_path, settings, EnvSpec((3,), "float32", num_actions=4, masks_actions=True))
    policy = tidemill.load_policy(tmp_path / "bundle")
    masks = np.eye(4, dtype=bool)
    for mask in masks:
        assert mask[policy.act(np.zeros(3), action_mask=mask)]
    policy.reset()
    assert policy.act(np.ones((4, 3)), action_mask=masks[::-1]).tolist() == [3, 2, 1, 0]
    with pytest.raises(InvalidArgument, match=naming("action_mask None (4, 4)")):
        policy.act(np.ones((4, 3)))
    for wrong in (masks[:, :3], masks[:2], masks & False):
        with pytest.raises(InvalidArgument, match=naming("(4, 4) action")):
            policy.act(np.ones((4, 3)), action_mask=wrong)
    config = tidemill.load_config({**settings, "cluster": {}})
    onnx = OnnxReport("it was not asked for")
    card = model_card(made, config, None, [], [], onnx)  # type: ignore[arg-type]
    assert "policy.act(observation, reward=reward, is_first=is_first, action_mask=env.action_mask)" in card


def test_environment_of_a_policy_begins_as_in_the_runs_evaluations(tmp_path: Path) -> None:
    """With the evaluator's no-op starts, where it has its own."""
    settings = {**_SETTINGS, "agent": {"algorithm": "dqn"}, "env": {"id": "ALE/MsPacman-v5", "noop_max": 0}}
    settings["evaluator"] = {"noop_max": 30}
    _bundle(tmp_path, settings, EnvSpec((84, 84), "uint8", frame_stack=4, num_actions=9))
    policy = tidemill.load_policy(tmp_path / "bundle")
    with closing(policy.make_env(4)) as env:
        assert len({observation.tobytes() for observation in env.reset(0)}) > 1


def test_policy_of_several_masked_choices_wants_a_legal_option_of_each(tmp_path: Path) -> None:
    """It would take the first option of a choice that has none, which is as illegal as the rest."""
    settings = {**_SETTINGS, "agent": {"algorithm": "ppo", "network": "mlp", "hidden_sizes": [8]}}
    settings["env"] = {"id": "CartPole-v1", "action_mask": "info.action_mask"}  # which names no code
    _bundle(tmp_path, settings, EnvSpec((3,), "float32", action_shape=(2,), action_sizes=(3, 2), masks_actions=True))
    policy = tidemill.load_policy(tmp_path / "bundle")
    assert policy.act(np.zeros(3), action_mask=[0, 0, 1, 1, 0]).tolist() == [2, 0]
    for wrong in ([1, 1, 1, 0, 0], [0, 0, 0, 1, 1]):
        with pytest.raises(InvalidArgument, match=naming("(1, 5) legal choice")):
            policy.act(np.zeros(3), action_mask=wrong)


@pytest.mark.parametrize("others", [("board",), ("board", "hand")])
def test_policy_takes_the_mask_out_of_the_observation(tmp_path: Path, others: tuple[str, ...]) -> None:
    """As training did, where `env.action_mask` names a key of it; one that is given besides comes before it."""
    settings = {**_SETTINGS, "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8]}}
    settings["env"] = {"id": "CartPole-v1", "action_mask": "observation.legal"}
    seen = observation_format(gymnasium.spaces.Dict({each: gymnasium.spaces.Box(-1, 1, (3,)) for each in others}))
    spec = EnvSpec((3,), "float32", num_actions=4, masks_actions=True)
    if len(others) > 1:
        several = replace(spec, observation_shape=seen.shape, observation_dtype="uint8")
        spec = replace(several, observation_parts=seen.parts, observation_spaces=seen.part_spaces)
    _bundle(tmp_path, settings, spec)
    policy = tidemill.load_policy(tmp_path / "bundle")
    observation = {**{each: np.zeros(3, np.float32) for each in others}, "legal": np.array([0, 0, 1, 0], np.int8)}
    assert policy.act(observation) == 2
    assert policy.act(observation, action_mask=[True, False, False, False]) == 0
    with pytest.raises(InvalidArgument, match=naming("'turn'")):
        policy.act({**observation, "turn": 0})


def test_policy_of_several_parts_takes_them_nested_or_packed(tmp_path: Path) -> None:
    """The shapes of the parts are in the bundle; what a part is not is said."""
    parts = (ObservationPart("body__0", "float32", (2,)), ObservationPart("camera", "uint8", (36, 36)))
    spec = EnvSpec((8 + 36 * 36,), "uint8", 2, num_actions=3, observation_parts=parts)
    settings = {**_SETTINGS, "agent": {"algorithm": "dqn", "network": "nature", "hidden_sizes": [8]}}
    made = _bundle(tmp_path, settings, spec)
    assert read_bundle(tmp_path / "bundle").env_spec == made.env_spec
    policy = tidemill.load_policy(tmp_path / "bundle")
    observation = {"camera": np.full((36, 36), 9, np.uint8), "body": (np.array([0.5, -1.0]),)}
    nested = [int(policy.act(observation)) for _ in range(3)]
    policy.reset()
    rows = packed(parts, observation)[None].repeat(2, axis=0)
    assert [policy.act(rows).tolist() for _ in range(3)] == [[action] * 2 for action in nested]
    with pytest.raises(InvalidArgument, match=naming("['camera'] ['body__0', 'camera']")):
        policy.act({"camera": observation["camera"]})
    policy.reset()
    with pytest.raises(InvalidArgument, match=naming("'body__0' NaN")):
        policy.act({**observation, "body": (np.array([0.5, np.nan]),)})


_CHOOSING = gymnasium.spaces.Dict(
    {
        "x": gymnasium.spaces.Box(-1, 1, (2, 2), np.float64),
        "wind": gymnasium.spaces.Box(-1, 1, (), np.float32),
        "d": gymnasium.spaces.Discrete(3, start=5),
        "m": gymnasium.spaces.MultiDiscrete([2, 3]),
        "flags": gymnasium.spaces.MultiBinary(3),
    }
)


def _choosing_policy(folder: Path) -> tuple[tidemill.TrainedPolicy, ObservationFormat]:
    """Return a policy of a bundle, trained with observations of those spaces, and how they are stored."""
    seen = observation_format(_CHOOSING)
    spec = EnvSpec(
        seen.shape, "uint8", num_actions=9, observation_parts=seen.parts, observation_spaces=seen.part_spaces
    )
    _bundle(folder, {**_SETTINGS, "agent": {"algorithm": "ppo", "network": "mlp", "hidden_sizes": [8]}}, spec)
    return tidemill.load_policy(folder / "bundle"), seen


def test_policy_takes_the_observations_of_the_environment_itself(tmp_path: Path) -> None:
    """Single and batched, as they come out of `reset`: the action is that of the stored form."""
    policy, seen = _choosing_policy(tmp_path)
    _CHOOSING.seed(3)
    for count in (1, 2, 3, 5):
        nested = [_CHOOSING.sample() for _ in range(count)]
        rows = np.stack([seen.pack(each) for each in nested])
        policy.reset()
        expected = policy.act(rows)
        policy.reset()
        batch = {key: np.stack([each[key] for each in nested]) for key in nested[0]}
        assert policy.act(batch).tolist() == expected.tolist()
        assert np.array_equal(packed(seen.parts, batch, seen.part_spaces), rows)
        for each, row, action in zip(nested, rows, expected, strict=True):
            policy.reset()
            assert policy.act(each) == action
            assert np.array_equal(packed(seen.parts, each, seen.part_spaces), row)
            assert np.array_equal(packed(seen.parts, unpack(seen.parts, row), seen.part_spaces), row)


def test_number_of_a_box_of_one_may_come_without_its_axis() -> None:
    """Training takes it, too: only the size of a Box counts there."""
    box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    seen = observation_format(gymnasium.spaces.Dict({"speed": box, "x": gymnasium.spaces.Box(-1, 1, (2,))}))
    values = {"speed": 0.5, "x": np.zeros(2, np.float32)}
    assert np.array_equal(packed(seen.parts, values, seen.part_spaces), seen.pack(values))


def test_batch_as_large_as_a_choice_is_no_one_hot() -> None:
    """Three integers are three choices of three options, unless they are one-hot as one of stored shape is."""
    seen = observation_format(gymnasium.spaces.Dict({"d": gymnasium.spaces.Discrete(3)}))
    assert packed(seen.parts, {"d": np.array([2, 1, 0])}, seen.part_spaces).shape == (3, 12)
    assert packed(seen.parts, {"d": np.array([0, 1, 0])}, seen.part_spaces).shape == (12,)


@pytest.mark.parametrize(
    "part, value, message",
    [
        ("flags", [2, 0, 1], "'flags' 2.0 0 and 1"),
        ("d", [0, 5, 0], "'d' 5.0 5 .. 7"),
        ("d", [1, 1, 0], "'d' [1.0 5 .. 7"),
        ("d", 4, "'d' 4 5 .. 7"),
        ("d", 6.0, "'d' float64"),
        ("d", [0, 1], "'d' (2,) (3,) ()"),
        ("m", [1, 3], "'m' [1 3] 0 .. 1 0 .. 2"),
        ("m", [0, 0, 1, 1, 0], "'m' 0 .. 1 0 .. 2"),
    ],
)
def test_policy_refuses_options_that_a_part_lacks(tmp_path: Path, part: str, value: object, message: str) -> None:
    """Of the environment's own form and of the stored one; also in packed bytes."""
    policy, seen = _choosing_policy(tmp_path)
    _CHOOSING.seed(0)
    observation = _CHOOSING.sample()
    with pytest.raises(InvalidArgument, match=naming(message)):
        policy.act({**observation, part: np.array(value)})
    row = seen.pack(observation)
    unpack(seen.parts, row)["d"][:] = 1
    with pytest.raises(InvalidArgument, match=naming("'d' one-hot")):
        policy.act(row)


def test_policy_that_does_not_know_the_spaces_asks_for_stored_shapes() -> None:
    """A bundle of an earlier version, or declared spaces: one number needs no axis, a choice must be one-hot."""
    seen = observation_format(_CHOOSING)
    _CHOOSING.seed(0)
    observation = _CHOOSING.sample()
    stored_form = unpack(seen.parts, seen.pack(observation))
    assert np.array_equal(packed(seen.parts, {**stored_form, "wind": observation["wind"]}), seen.pack(observation))
    with pytest.raises(InvalidArgument, match=naming("'d' () (3,) one-hot")):
        packed(seen.parts, {**stored_form, "d": observation["d"]})


@pytest.mark.parametrize(
    "section, name, value",
    [
        ("env", "id", "os:system"),
        ("env", "vector", "subprocess:Popen"),
        ("agent", "algorithm", "evil:Config"),
        ("agent", "algorithm", "evil.agent"),
        ("agent", "network", "evil.network"),
    ],
)
def test_bundle_of_a_stranger_imports_nothing(
    tmp_path: Path, section: str, name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that name code are refused before anything is imported, unless the origin is trusted, by either door."""
    _bundle(tmp_path)
    config = tmp_path / "bundle/config.yaml"
    document = yaml.safe_load(config.read_text())
    document[section][name] = value
    config.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=naming(f"{section}.{name}", value, "trusted=True")) as caught:
        tidemill.load_policy(tmp_path / "bundle")
    assert "--trust" not in str(caught.value)
    assert evaluate([str(tmp_path / "bundle")]) == 2
    told = capsys.readouterr().err
    assert "--trust" in told
    assert "trusted=True" not in told


def _terminal_obeys(text: str) -> bool:
    return not text.replace("\n", "").isprintable()


def test_code_to_be_trusted_is_shown_as_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot take the place of the line that asks for trust, or hide what else would be imported."""
    _bundle(tmp_path)
    config = tmp_path / "bundle/config.yaml"
    env = {"vector": "evil:make", "id": "a:\x1b[2K\rtidemill evaluate: nothing is imported; --trust\x1b[8m"}
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "env": env}))
    assert evaluate([str(tmp_path / "bundle")]) == 2
    told = capsys.readouterr().err
    assert "env.vector: 'evil:make'" in told
    assert not _terminal_obeys(told)
    with pytest.raises(ConfigError) as refused:
        tidemill.load_policy(tmp_path / "bundle")
    assert not _terminal_obeys(str(refused.value))


def test_names_in_a_bundle_are_printed_as_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An algorithm's name neither sets the clipboard nor adds a line to the report."""
    _bundle(tmp_path)
    name = "sac\x1b]52;c;bHM=\x07\nmean 999"
    _reseal(tmp_path / "bundle", lambda content: content["version"]["metadata"].update(algorithm=name))
    assert evaluate([str(tmp_path / "bundle"), "--episodes", "1", "--num-envs", "1"]) == 0
    said = capsys.readouterr().out
    assert not _terminal_obeys(said)
    assert "\nmean 999" not in said


def test_bundle_with_a_section_of_one_value_says_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for any other file of settings; it is looked at first for code that it names."""
    _bundle(tmp_path)
    config = tmp_path / "bundle/config.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "env": "CartPole-v1"}))
    assert evaluate([str(tmp_path / "bundle")]) == 2
    assert "env is 'CartPole-v1', must be a mapping of settings, such as {id: CartPole-v1}" in capsys.readouterr().err


def test_algorithm_that_is_no_text_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number with a dot is refused too: as text it is the path of a package in the working directory."""
    _bundle(tmp_path)
    (tmp_path / "1/5").mkdir(parents=True)
    (tmp_path / "1/5/config.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "bundle/config.yaml"
    config.write_text(config.read_text().replace("algorithm: sac", "algorithm: 1.5"))
    with pytest.raises(ConfigError, match=naming("agent.algorithm 1.5 text")):
        tidemill.load_policy(tmp_path / "bundle")


def test_folder_of_neither_kind_is_explained(tmp_path: Path) -> None:
    """A folder without settings is neither a run nor a bundle."""
    with pytest.raises(ConfigError, match=naming("config.yaml")):
        tidemill.load_policy(tmp_path)


def test_edited_settings_are_explained(tmp_path: Path) -> None:
    """Parameters of another network name the file to look at."""
    _bundle(tmp_path)
    config = tmp_path / "bundle/config.yaml"
    config.write_text(config.read_text().replace("- 8", "- 9"))
    with pytest.raises(tidemill.FatalError, match=naming("5 agent.* config.yaml")):
        tidemill.load_policy(tmp_path / "bundle")


def test_card_names_what_was_measured(tmp_path: Path) -> None:
    """Scores stand with their episodes and how they came about; without any it says so."""
    made = _bundle(tmp_path)
    config = tidemill.load_config({**_SETTINGS, "cluster": {}})
    described = Bundle(made.params, made.env_spec, {}, {"torch": "2"})
    test = {"mean": -130.25, "std": 4.0, "episodes": 100, "policy": "greedy", "seeds": [7, 8]}
    card = model_card(described, config, None, [test], ["learning_curve.png"], OnnxReport("no"))  # type: ignore[arg-type]
    assert "- -130.25 ± 4.00 over 100 fresh episodes, greedy policy, seeds from 7" in card
    assert "40 agent decisions and 10 updates (seed 3)" in card
    assert "learning_curve.png" in card
    assert "- torch 2" in card
    ppo = tidemill.load_config({"agent": {"algorithm": "ppo", "epochs": 10, "minibatches": 32}})
    counted = model_card(made, ppo, None, [], [], OnnxReport("no"))  # type: ignore[arg-type]
    assert "and 10 updates, each of 320 gradient steps (seed 1)" in counted
    assert "has not been evaluated" in model_card(made, config, None, [], [], OnnxReport("no"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "test, line",
    [
        ({}, "100 fresh episodes, greedy policy, seeds from 10010000"),
        (
            {"noop_max": 30, "sticky_actions": 0.0, "failed_episodes": 0},
            "100 fresh episodes, greedy policy, seeds from 10010000",
        ),
        ({"first_seed": 10_000}, "100 episodes, greedy policy, seeds from 10000"),
        ({"first_seed": 9_901}, "100 episodes, greedy policy, seeds from 9901"),
        ({"first_seed": 9_900}, "100 fresh episodes, greedy policy, seeds from 9900"),
        ({"first_seed": 1_010_000}, "100 episodes, greedy policy, seeds from 1010000"),
        ({"first_seed": 99_999_901}, "100 episodes, greedy policy, seeds from 99999901"),
        (
            {"policy": "epsilon", "epsilon": 0.2},
            "100 fresh episodes, epsilon policy (epsilon 0.2), seeds from 10010000",
        ),
        (
            {"noop_max": 0, "sticky_actions": 0.25, "max_steps": 7, "failed_episodes": 3},
            "100 fresh episodes, greedy policy, seeds from 10010000, 3 more failed, up to 0 no-op starts instead, "
            "sticky actions 0.25, at most 7 decisions each",
        ),
    ],
)
def test_card_says_what_a_test_measured_otherwise_than_the_run(test: dict[str, Any], line: str, tmp_path: Path) -> None:
    """Episodes are fresh whose seeds have neither chosen the version nor trained it."""
    made = _bundle(tmp_path)
    config = tidemill.load_config({"env": {"id": "ALE/Pong-v5"}, "agent": {"algorithm": "dqn"}})
    usual = {"mean": 1.0, "std": 0.5, "episodes": 100, "policy": "greedy", "seeds": [0], "first_seed": 10_010_000}
    steps = {"max_steps": config.env.max_evaluation_steps}
    card = model_card(made, config, None, [usual | steps | test], [], OnnxReport("no"))  # type: ignore[arg-type]
    assert f"\n- 1.00 ± 0.50 over {line}\n" in card


@pytest.mark.parametrize(
    "target, outcome",
    [
        (-125.0, " that confirmed it at the target of -125"),
        (-100.0, " that did not confirm it at the target of -100"),
        (None, ""),
    ],
)
def test_card_has_the_mean_of_fresh_episodes(target: float | None, outcome: str, tmp_path: Path) -> None:
    """Whether they confirmed the version or not. The Hub lists it, since the version was picked by the other mean."""
    made = _bundle(tmp_path)
    config = tidemill.load_config({**_SETTINGS, "cluster": {}, "run": {"target_return": target}})
    picked = Score(1.0, 10, 40, 5, 2, -96.1, 1.75, -98.0, -94.0, -96.0, 7.0)
    fresh = replace(picked, episodes=50, mean=-120.5, std=20.0)
    card = model_card(made, config, picked, [], [], OnnxReport("no"), confirmation=fresh)  # type: ignore[arg-type]
    assert "- -96.10 ± 1.75 over 2 episodes when the run evaluated it" in card
    assert f"- -120.50 ± 20.00 over 50 fresh episodes{outcome}\n" in card
    assert 'value: "-120.50 +/- 20.00"' in card


def test_card_says_what_code_the_policy_needs(tmp_path: Path) -> None:
    """Of an environment of one's own: how it is trusted, and that its module is not in the folder."""
    made = _bundle(tmp_path)
    own = tidemill.load_config({**_SETTINGS, "env": {"id": "room:Room"}, "cluster": {}})
    card = model_card(made, own, None, [], [], OnnxReport("no"))  # type: ignore[arg-type]
    assert 'tidemill.load_policy(".", trusted=True)' in card
    assert "`tidemill evaluate . --trust` plays" in card
    assert "(`env.id: room:Room`), which is not in this folder: `room` must be installed or lie in the working" in card
    plain = model_card(made, tidemill.load_config(_SETTINGS), None, [], [], OnnxReport("no"))  # type: ignore[arg-type]
    assert "trust" not in plain


class _Game:
    """A program that only acts as a client."""

    def reset(self) -> list[float]:
        return [0.0, 0.0, 0.0]

    def push(self, action: Any) -> tuple[list[float], float, bool]:  # noqa: ANN401 - an array
        assert np.abs(action).max() <= 1
        return [0.0, 0.5, 1.0], 1.0, True


def test_card_of_a_policy_that_only_simulators_can_play_names_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its example runs as it stands, and its settings are those of a run with simulators."""
    settings = {
        **_SETTINGS,
        "env": {"id": "robot", "spaces": {"observation": ["float32", 3], "action_shape": [1]}},
        "evaluator": {"source": "simulators"},
        "launcher": {"actors": 0, "inference": 1},
        "inference": {"simulators": 4, "server": {"address": "127.0.0.1:7406"}},
    }
    made, config = _bundle(tmp_path, settings), tidemill.load_config(settings)
    written = OnnxReport(input="float32 [N, 3]", output="float32 [N, 1]")
    for onnx, stacked in ((OnnxReport("no"), made), (written, replace(made, env_spec=replace(_SPEC, frame_stack=4)))):
        card = model_card(stacked, config, None, [], [], onnx)  # type: ignore[arg-type]
        assert "make_env" not in card
        assert "tidemill evaluate" not in card
    monkeypatch.chdir(tmp_path / "bundle")
    exec(card.partition("```python\n")[2].partition("```")[0], {"game": _Game()})
    trained = tidemill.load_config(tmp_path / "bundle/config.yaml")
    assert (trained.inference.simulators, trained.launcher.inference, trained.launcher.actors) == (4, 1, 0)
    assert "7406" not in (tmp_path / "bundle/config.yaml").read_text()


def test_card_asks_for_the_addresses_of_sources(tmp_path: Path) -> None:
    """They are not passed on, and without one a source would be looked for at the run's own replay service."""
    made, config = _bundle(tmp_path), tidemill.load_config(_SETTINGS)
    card = model_card(made, config, None, [], [], OnnxReport("no"), sources=["walks"])  # type: ignore[arg-type]
    assert "`tidemill train --config config.yaml --learner.sources.walks.replay ADDRESS` with" in card
    assert "ADDRESS is of a replay service with the table" in card
    assert "ADDRESS" not in model_card(made, config, None, [], [], OnnxReport("no"))  # type: ignore[arg-type]


def _trained_run(tmp_path: Path) -> None:
    """Write a run's folder with parameters, and its bundle."""
    made = _bundle(tmp_path)
    params = tmp_path / "run/params"
    params.mkdir()
    (params / "0000000005.json").write_bytes(seal(from_version(made.params.version)))
    (params / "0000000005.full.safetensors").write_bytes(made.params.blob)


def test_run_that_was_renamed_is_exported_with_its_present_name(tmp_path: Path) -> None:
    """Another run may have the name in its settings, as after `tidemill train --fresh`."""
    _trained_run(tmp_path)
    (tmp_path / "run").rename(tmp_path / "small-1")
    policy = tmp_path / "policy"
    assert export([str(tmp_path / "small-1"), "--out", str(policy)]) == 0
    assert "of the run `small-1`" in (policy / "README.md").read_text()
    assert tidemill.load_config(policy / "config.yaml").run.name == "small-1"


@pytest.mark.parametrize("verdict, tag, number", [(5, "latest", 5), (6, "latest", 6), (5, "6", 6)])
def test_version_that_ended_the_run_is_exported_as_the_one_that_was_measured(
    verdict: int, tag: str, number: int, tmp_path: Path
) -> None:
    """The learner publishes it again at the end, so `latest` has another number, and only tests under it."""
    _trained_run(tmp_path)
    params = tmp_path / "run/params"
    again = replace(_params(_SETTINGS, _SPEC).version, version=6)
    (params / "0000000006.json").write_bytes(seal(from_version(again)))
    (params / "0000000006.full.safetensors").write_bytes((params / "0000000005.full.safetensors").read_bytes())
    (params / "tags.json").write_bytes(seal({"sequence": 1, "tags": {"verdict": verdict}}))
    (tmp_path / "run/scores.csv").unlink()
    ScoreLog(tmp_path / "run/scores.csv").append(Score(1.0, 10, 40, 5, 2, -96.1, 1.75, -98.0, -94.0, -96.0, 7.0))
    assert evaluate([str(tmp_path / "run"), "--tag", "latest", "--episodes", "1", "--seed", "5"]) == 0
    policy = tmp_path / "policy"
    assert export([str(tmp_path / "run"), "--tag", tag, "--out", str(policy)]) == 0
    card = (policy / "README.md").read_text()
    assert f"Version {number} of the run" in card
    assert ("-96.10 ± 1.75 over 2 episodes" in card) == (number == 5)
    assert "over 1 fresh episodes, greedy policy, seeds from 5" in card


def test_run_of_a_sweep_is_exported_by_the_name_of_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the policies of two trials have separate folders, cards and settings."""
    _trained_run(tmp_path)
    run = tmp_path / "tuned/trial-0003/seed-1"
    run.parent.mkdir(parents=True)
    (tmp_path / "run").rename(run)
    monkeypatch.chdir(tmp_path)
    assert export([str(run)]) == 0
    policy = tmp_path / "tuned-trial-0003-seed-1-policy"
    assert "of the run `tuned-trial-0003-seed-1`" in (policy / "README.md").read_text()
    assert tidemill.load_config(policy / "config.yaml").run.name == "tuned-trial-0003-seed-1"


def test_paths_may_begin_with_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python and after `--out=`, where no shell replaces `~`."""
    _trained_run(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tidemill.load_policy("~/run").version.version == 5
    assert tidemill.load_config("~/run/config.yaml").run.name == "small"
    assert find_config("~/run/config.yaml") == tmp_path / "run/config.yaml"
    with pytest.raises(AlreadyExists, match=naming(tmp_path / "bundle")):
        export([str(tmp_path / "run"), "--out=~/bundle"])


def test_trained_policy_is_reproduced_from_its_folder(tmp_path: Path) -> None:
    """A run's folder is loaded the same way as its bundle: both act alike."""
    _trained_run(tmp_path)
    run, bundle = (tidemill.load_policy(tmp_path / name) for name in ("run", "bundle"))
    assert (run.version.version, run.env_spec) == (5, bundle.env_spec)
    observation = torch.randn(3, generator=torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_array_equal(run.act(observation), bundle.act(observation))
