"""The peer is measured by the evaluator's rules, and reads like a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learn.atomic import write_json
from benchmarks.learn.carry_out import carry_out
from benchmarks.learn.peer import network_of, schedule, zoo_settings
from benchmarks.learn.peer_course import Course, State
from benchmarks.learn.plan import Plan
from benchmarks.learn.processes import Processes
from benchmarks.learn.ran import read_ran
from tests.support.naming import naming
from tests.unit.benchmarks.run_folders import add_test, config_of, make_run
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.services.evaluator.protocol import Evaluation


class FakeGame:
    """Every episode returns what the parameters of now are worth; each evaluation takes ten seconds."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.worth, self.now_s = 0.0, 0.0
        self.seeds: list[tuple[int, int]] = []
        self.on_fresh_seeds = 0.0

    def play(self, seeds: Sequence[int]) -> Evaluation:
        """Play an episode of each seed."""
        self.seeds.append((seeds[0], len(seeds)))
        self.now_s += 10.0
        worth = self.worth if seeds[0] == 10_000 else self.worth + self.on_fresh_seeds
        return Evaluation(np.full(len(seeds), worth), np.full(len(seeds), 7), tuple(seeds))

    def state(self) -> State:
        """Return the parameters of now."""
        return {"worth": self.worth}


def protocol_of(folder: Path) -> RunConfig:
    """Return settings with a target of 50, 4 episodes per evaluation and 6 to confirm."""
    config = config_of(folder, 1)
    return replace(config, evaluator=replace(config.evaluator, episodes=4, confirm_episodes=6))


def walked(folder: Path, worths: Sequence[float], on_fresh_seeds: float = 0.0) -> tuple[FakeGame, Course]:
    """Return a course on which a hundred decisions take a second and the parameters have these worths in turn."""
    game = FakeGame()
    game.on_fresh_seeds = on_fresh_seeds
    course = Course(protocol_of(folder), folder, game.play, every=200, now=lambda: game.now_s)
    for hundred in range(1, 2 * len(worths) + 1):
        game.worth = worths[(hundred - 1) // 2]
        game.now_s += 1.0
        course.at(100 * hundred, 25 * hundred, game.state)
    course.end(200 * len(worths), 50 * len(worths), game.state)
    return game, course


def test_course_reads_like_a_run(tmp_path: Path) -> None:
    """Evaluations are due every so many decisions, their time does not count, and the first confirmation does."""
    folder = tmp_path / "sb3-seed-1"
    game, course = walked(folder, [10.0, 60.0, 80.0, 20.0])
    tested = list(course.to_test())
    assert tested == [(4, {"worth": 20.0}), (3, {"worth": 80.0})]
    for number, state in tested:
        game.worth = state["worth"]
        course.test(number, 5)
    write_json(folder / "result.json", course.result())
    ran = read_ran(folder, 1, 50.0)
    assert ran is not None
    assert ran.curve == ([200.0, 400.0, 600.0, 800.0], [10.0, 60.0, 80.0, 20.0])
    assert (ran.wall_s, ran.learner_steps, ran.is_finished) == (8.0, 200, True)
    assert ran.confirmed is not None
    assert (ran.confirmed.env_steps, ran.confirmed.episodes, ran.confirmed_s) == (400, 6, 4.0)
    assert ran.test_final is not None
    assert ran.test_best is not None
    assert (ran.test_final.mean, ran.test_best.mean, ran.test_best.env_steps) == (20.0, 80.0, 600)
    assert game.seeds == [
        (10_000, 4),
        (10_000, 4),
        (1_010_000, 6),
        (10_000, 4),
        (10_000, 4),
        (10_010_000, 5),
        (10_010_000, 5),
    ]


@pytest.mark.parametrize("is_finished", [True, False])
def test_earlier_run_of_the_peer_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    """A second run that ends half way has the scores, the result and the tests of no other one."""
    monkeypatch.chdir(tmp_path)
    config = protocol_of(tmp_path / "run")
    plan = Plan("task", tmp_path / "task.yaml", "", config, (1,), 100, (), sb3=str(tmp_path))
    folder = plan.peer_folder(1)
    make_run(folder, 1, [(1000, 10.0), (3000, 60.0)], ended=is_finished)
    add_test(folder, 2, 55.0)

    def stop_half_way(_: Processes, command: Sequence[str], *__: object) -> int:
        if "benchmarks.learn.peer" in command:
            assert not folder.exists()
            make_run(folder, 1, [(1000, 20.0)], ended=False)
        return 1

    monkeypatch.setattr(Processes, "run", stop_half_way)
    carry_out(plan, [1], jobs=1, again=is_finished, limit_s=1.0)
    again, before = read_ran(folder, 1, 50.0), read_ran(folder.with_name("sb3-seed-1-1"), 1, 50.0)
    assert again is not None
    assert before is not None
    assert (again.is_finished, again.curve, again.test_best) == (False, ([1000.0], [20.0]), None)
    assert (before.is_finished, before.curve) == (is_finished, ([1000.0, 3000.0], [10.0, 60.0]))


def test_target_that_fresh_episodes_do_not_bear_out_is_not_reached(tmp_path: Path) -> None:
    """Each further confirmation has new seeds."""
    game, course = walked(tmp_path / "run", [60.0, 70.0], on_fresh_seeds=-30.0)
    assert course.result()["solved"] is False
    assert course.result()["failed_confirmations"] == 2
    assert game.seeds[1::2] == [(1_010_000, 6), (1_010_006, 6)]


def test_network_is_what_the_settings_make_of_it() -> None:
    """Without layers in the settings it is the package's own."""
    assert network_of("dqn", zoo_settings("dqn", "CartPole-v1")) == "256, 256"
    assert network_of("sac", zoo_settings("sac", "LunarLanderContinuous-v3")) == "400, 300"
    assert network_of("sac", zoo_settings("sac", "Pendulum-v1")) == "256, 256"
    assert network_of("ppo", zoo_settings("ppo", "CartPole-v1")) == "64, 64"
    assert network_of("dqn", {}) == "64, 64"


def test_zoo_settings_are_those_of_algorithm_and_environment() -> None:
    """What the list does not have is refused with what it has."""
    assert zoo_settings("dqn", "CartPole-v1")["learning_rate"] == 2.3e-3
    with pytest.raises(ConfigError, match=naming("td3 CartPole-v1 dqn CartPole-v1")):
        zoo_settings("td3", "CartPole-v1")


def test_linear_learning_rate_falls_to_nothing() -> None:
    """`lin_X` is X times the share of the run that is left."""
    falling = schedule(zoo_settings("sac", "LunarLanderContinuous-v3")["learning_rate"])
    assert [falling(1.0), falling(0.5), falling(0.0)] == [7.3e-4, 3.65e-4, 0.0]
    assert schedule(1e-3) == 1e-3
