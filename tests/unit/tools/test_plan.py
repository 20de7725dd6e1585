"""The sizing calculator against sums worked out by hand, and its figures against the committed results."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from scripts import plan_rates
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.tools.plan import (
    RATES_FILE,
    PlanOptions,
    Rates,
    actor_steps_per_s,
    advice,
    make_plan,
    measured_case,
    measured_rates,
    plan,
    updates_per_core_s,
)

_RATES = Rates(
    actor=1_000.0, update=100.0, decode=10_000.0, two_threads=2.0, shard_inserts=100_000.0, shard_samples=50_000.0
)


def test_plan_without_a_gpu_is_held_back_by_its_learner() -> None:
    """A core of 100 updates/s at 1 update for 4 steps allows 400 steps/s, less than one actor's 1,000."""
    found = make_plan(PlanOptions(cores=8, env="x", batch_size=100, updates_per_env_step=0.25), _RATES)
    assert (found.env_steps_per_s, found.updates_per_s) == (400.0, 100.0)
    assert (found.actors, found.learners, found.decode_threads, found.shards) == (1, 1, 1, 1)
    assert (found.limit, found.idle_cores) == ("the learner", 6)


def test_plan_with_gpus_divides_the_cores() -> None:
    """An env step costs 1 ms of an actor, 0.01 + 0.5 ms of replay and 2.5 ms of decoding: 38 cores do 9,476 steps/s.

    Two more belong to the learners. Actors need 9.5 cores, shards 4.8, decoding 23.7, or 11.8 for each learner.
    """
    options = PlanOptions(
        cores=40, env="x", gpus=2, learners=2, batch_size=100, updates_per_env_step=0.25, updates_per_s=5_000.0
    )
    found = make_plan(options, dataclasses.replace(_RATES, update=5_000.0))
    assert found.env_steps_per_s == pytest.approx(38 / 4.01e-3)
    assert found.updates_per_s == pytest.approx(38 / 4.01e-3 / 4)
    assert (found.actors, found.learners, found.decode_threads, found.shards) == (10, 2, 12, 5)
    assert found.limit == "the number of cores"
    assert "--launcher.actors 10" in found.lines()[0]


def test_threads_that_disturb_each_other_are_more() -> None:
    """If two do the work of 1.5, the work of 2.25 takes four, and that of one takes one."""
    options = PlanOptions(cores=64, env="x", gpus=1, batch_size=100, updates_per_env_step=0.25, updates_per_s=225.0)
    rates = dataclasses.replace(_RATES, update=225.0, two_threads=1.5)  # 22,500 transitions/s, 10,000 a thread
    assert make_plan(options, rates).decode_threads == 4
    assert make_plan(options, dataclasses.replace(rates, update=100.0)).decode_threads == 1


def test_shards_are_as_many_as_give_out_what_is_sampled() -> None:
    """300 updates of 512 are 153,600 transitions/s; a server gives out fewer whole ones than mirrored ones."""
    options = PlanOptions(
        cores=32, env="ALE/Pong-v5", gpus=1, batch_size=512, updates_per_env_step=0.05, updates_per_s=300.0
    )
    mirrored, whole = measured_rates(options), measured_rates(dataclasses.replace(options, mirror=False))
    assert mirrored.shard_samples > whole.shard_samples
    for rate, shards in ((160_000.0, 1), (151_000.0, 2), (74_500.0, 3)):
        assert make_plan(options, dataclasses.replace(mirrored, shard_samples=rate)).shards == shards


def test_rates_of_the_package_are_those_of_the_committed_results() -> None:
    """The file in the package equals what benchmarks/results holds; `python -m scripts.plan_rates` writes it."""
    assert json.loads(RATES_FILE.read_text(encoding="utf-8")) == plan_rates.measured()


def test_rate_of_an_atari_game_that_was_not_measured_is_the_median_of_the_others() -> None:
    """Five games were measured: the median is the third of them."""
    measured = json.loads(RATES_FILE.read_text(encoding="utf-8"))["actor_env_steps_per_s"]
    games = sorted(rate for name, rate in measured.items() if name.startswith("ALE/"))
    assert actor_steps_per_s("ALE/Asterix-v5") == games[2]
    assert actor_steps_per_s("ALE/Pong-v5") == measured["ALE/Pong-v5"]


def test_what_was_not_measured_is_not_guessed() -> None:
    """The message says which option to pass, and what was measured."""
    with pytest.raises(ConfigError, match=naming("steps/s Ant-v5 --actor-steps-per-s")):
        actor_steps_per_s("Ant-v5")
    with pytest.raises(ConfigError, match=naming("7 128")):
        updates_per_core_s("quickstart", 7)
    with pytest.raises(ConfigError, match=naming("updates/s 'ppo' nature_dueling_dqn")):
        updates_per_core_s("ppo", 7)
    with pytest.raises(ConfigError, match=naming("GPU --updates-per-s")):
        measured_rates(PlanOptions(cores=8, env="ALE/Pong-v5", gpus=1))


def test_update_on_a_core_takes_longer_in_a_run_than_alone() -> None:
    """Its core also follows the table and publishes, the training thread of a GPU does not."""
    options = PlanOptions(cores=2, env="LunarLanderContinuous-v3", batch_size=128, case="quickstart")
    in_run_s = json.loads(RATES_FILE.read_text(encoding="utf-8"))["update_in_run_s"]
    assert 1 / measured_rates(options).update == pytest.approx(1 / updates_per_core_s("quickstart", 128) + in_run_s)
    on_gpu = dataclasses.replace(options, gpus=1, updates_per_s=500.0)
    assert measured_rates(on_gpu).update == 500.0
    assert 0.0 < in_run_s < 2e-3


def test_time_of_an_update_is_interpolated_between_measured_batches() -> None:
    """From 32 to 256 items: 128 are three sevenths of the way."""
    at_32, at_256 = (1 / updates_per_core_s("nature_dueling_dqn", size) for size in (32, 256))
    assert 1 / updates_per_core_s("nature_dueling_dqn", 128) == pytest.approx(at_32 + (at_256 - at_32) * 3 / 7)


def test_learners_make_every_update_together() -> None:
    """Four GPUs promise no more updates than one; the advice says what the others are good for."""
    alone = PlanOptions(cores=64, env="x", gpus=1, batch_size=128, updates_per_env_step=0.25, updates_per_s=100.0)
    several = dataclasses.replace(alone, gpus=4, learners=4)
    assert make_plan(several, _RATES).updates_per_s == make_plan(alone, _RATES).updates_per_s == 100.0
    assert not any("GPU" in line for line in advice(alone, _RATES, make_plan(alone, _RATES)))
    said = "\n".join(advice(several, _RATES, make_plan(several, _RATES)))
    for use in ("--learners 4 --batch-size 512", "`tidemill sweep` with parallel: 4", "--launcher.inference 4"):
        assert use in said


@pytest.mark.parametrize("cores, gpus, actors", [(16, 0, 15), (64, 4, 62)])
def test_ratio_of_zero_fills_the_machine(cores: int, gpus: int, actors: int) -> None:
    """Learner and actors each as fast as they can: every core but the learner's own acts, feeds or decodes."""
    options = PlanOptions(cores=cores, env="ALE/Pong-v5", gpus=gpus, updates_per_s=300.0 if gpus else 0.0)
    found = make_plan(options, measured_rates(options))
    assert (found.actors, found.idle_cores) == (actors, 0)


def test_single_core_is_shared_by_all() -> None:
    """At 1 update for 4 steps a step costs 1.01 ms of actor and insert, and a quarter of 10 ms + 2 ms of an update."""
    found = make_plan(PlanOptions(cores=1, env="x", batch_size=100, updates_per_env_step=0.25), _RATES)
    assert found.env_steps_per_s == pytest.approx(1 / (0.00101 + 0.25 * 0.012))
    assert found.updates_per_s == pytest.approx(found.env_steps_per_s / 4)
    assert (found.actors, found.learners, found.limit, found.idle_cores) == (1, 1, "the number of cores", 0)
    free = make_plan(PlanOptions(cores=1, env="x", batch_size=100), _RATES)
    assert free.env_steps_per_s == pytest.approx(0.5 / 0.00101)
    assert free.updates_per_s == pytest.approx(0.5 / 0.012)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"cores": 0}, "cores 0 1"),
        ({"cores": 1, "gpus": 2, "learners": 2}, "learners 2 1"),
        ({"gpus": -1}, "gpus -1"),
        ({"updates_per_env_step": math.inf}, "updates_per_env_step inf"),
        ({"updates_per_s": math.nan}, "updates_per_s nan"),
        ({"actor_steps_per_s": -1.0}, "actor_steps_per_s -1.0"),
    ],
)
def test_machine_that_there_is_not_is_refused(wrong: dict[str, Any], said: str) -> None:
    """The message names the value and what is allowed."""
    with pytest.raises(ConfigError, match=naming(said)):
        PlanOptions(**{"cores": 4, "env": "x", **wrong})


def test_ratio_that_leaves_cores_idle_says_how_many_and_what_for() -> None:
    """One actor is all that a slow learner needs: the plan says so instead of looking like a full machine."""
    options = PlanOptions(cores=8, env="x", batch_size=100, updates_per_env_step=0.25)
    said = advice(options, _RATES, make_plan(options, _RATES))
    assert said[0].startswith("6 cores are idle")
    assert "--launcher.actors 7 --learner.updates-per-env-step 0" in said[1]


@pytest.mark.parametrize("learners, gpus, allowed", [(2, 0, "1 to 1"), (5, 4, "1 to 4"), (0, 4, "1 to 4")])
def test_more_learners_than_gpus_are_refused(learners: int, gpus: int, allowed: str) -> None:
    """The message names the value and what is allowed."""
    with pytest.raises(ConfigError, match=naming("learners", learners, *allowed.split(" to "))):
        PlanOptions(cores=16, env="x", gpus=gpus, learners=learners)


def test_config_gives_what_it_says_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Environment, batch, ratio and network; an option overrides them, and on-policy algorithms are refused."""
    assert plan(["--config", "quickstart", "--cores", "16"]) == 0
    assert "--learner.updates-per-env-step 0.25" in capsys.readouterr().out
    assert plan(["--cores", "16", "--config", "quickstart", "--updates-per-env-step", "0"]) == 0
    assert "--learner.updates-per-env-step 0\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=naming("'ppo' learner")):
        plan(["--config", "cartpole_ppo"])
    with pytest.raises(ConfigError, match=naming("'nature_dqn'")):
        plan(["--config", "pong_dqn"])


@pytest.mark.parametrize(
    "settings",
    [
        {"quantiles": 25},
        {"crossq": True},
        {"lstm_size": 64},
        {"critics": 10},
        {"critic_sizes": (2048, 2048)},
        {"critic_layer_norm": True},
    ],
    ids=str,
)
def test_update_that_was_not_measured_has_no_case(settings: dict[str, Any]) -> None:
    """Those of two plain critics are several times as fast."""
    assert measured_case(SACConfig(critic_sizes=(256, 256)), "x") == "sac_256_256"
    with pytest.raises(ConfigError, match=naming("'sac with other critics or an LSTM'")):
        updates_per_core_s(measured_case(SACConfig(**settings), "x"), 256)


def test_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line of a machine with a GPU whose rate is given."""
    assert plan(["--cores", "16", "--gpus", "1", "--env", "ALE/Pong-v5", "--updates-per-s", "300"]) == 0
    said = capsys.readouterr().out
    assert "--launcher.learners 1" in said
    assert "updates/s" in said


@pytest.mark.parametrize(
    "words, said",
    [
        ("--cores x --env y", "cores 'x'"),
        ("--gpus 1", "env --env ALE/Pong-v5 --config"),
        ("--cores 4 --env CartPole-v1 --gpu-count 1", "--gpu-count"),
        ("--cores 0 --env y", "cores 0 1"),
        ("--config= --env ALE/Pong-v5", "--config ''"),
    ],
)
def test_wrong_option_is_refused(words: str, said: str) -> None:
    """By the parser of every command that has settings."""
    with pytest.raises(ConfigError, match=naming(said)):
        plan(words.split())


def test_help_has_every_option_with_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a screen."""
    monkeypatch.setenv("COLUMNS", "80")
    assert plan(["--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 40
    assert max(map(len, shown.splitlines())) <= 80
    for field in dataclasses.fields(PlanOptions):
        assert f"--{field.name.replace('_', '-')} " in shown
    assert "(default: 256)" in shown


def test_options_stand_over_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    """The environment and ratio are the preset's, the cores those that are given."""
    assert plan(["--config", "quickstart", "--cores", "6", "--no-mirror"]) == 0
    assert "actors" in capsys.readouterr().out


def test_value_that_is_refused_casts_no_doubt_on_others() -> None:
    """Eight learners are too many for two cores, and not for the eight GPUs: one line says so."""
    words = ["--cores", "2", "--gpus", "8", "--learners", "8", "--env", "ALE/Pong-v5", "--updates-per-s", "400"]
    with pytest.raises(ConfigError, match=naming("learners 8 2")):
        plan(words)
