"""The launcher's judgement, without a process: starts, restarts, limits, endings and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.config.services import LauncherSettings
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.process import ENV_FAILED, GPU_LOST, HELD_UP
from tidemill.services.launcher.commands.train import describe_failed_learner
from tidemill.services.launcher.supervise.service_spec import ServiceSpec
from tidemill.services.launcher.supervise.supervisor import Action, Outcome, Phase, Supervisor, Verb, describe_exit

_SETTINGS = LauncherSettings(max_restarts=3, restart_backoff_s=1.0, start_timeout_s=60.0, stop_timeout_s=20.0)


def _spec(name: str, after: tuple[str, ...] = ()) -> ServiceSpec:
    return ServiceSpec(name, name.partition("-")[0], f"tidemill.services.{name}", (), "unix:///x", after)


_PLAYS_AGAIN = replace(_spec("actor-0"), history=Path("h"))


def _cluster() -> Supervisor:
    names = ("replay", "paramserver", "learner", "actor-0", "actor-1")
    return Supervisor([*map(_spec, names), _spec("evaluator", ("learner",))], _SETTINGS)


def _running() -> Supervisor:
    supervisor = _cluster()
    supervisor.start(0.0)
    for name in supervisor.processes:
        supervisor.on_serving(name, 1.0)
    return supervisor


def _names(actions: Sequence[Action], verb: Verb) -> list[str]:
    assert {action.verb for action in actions} <= {verb}
    return [action.service for action in actions]


def test_start_begins_with_what_follows_nothing() -> None:
    """The evaluator waits for the learner to be healthy; everything else starts at once."""
    supervisor = _cluster()
    assert _names(supervisor.start(0.0), Verb.START) == [
        "replay",
        "paramserver",
        "learner",
        "actor-0",
        "actor-1",
    ]
    assert supervisor.on_serving("replay", 1.0) == []
    assert _names(supervisor.on_serving("learner", 1.0), Verb.START) == ["evaluator"]


def test_exit_of_a_running_service_restarts_it_after_the_backoff() -> None:
    """Killed at 10 s with a backoff of 1 s: started again at 11 s, not before."""
    supervisor = _running()
    assert supervisor.on_exit("learner", -9, 10.0) == []
    process = supervisor.processes["learner"]
    assert (process.phase, process.reason) == (Phase.BACKOFF, "was killed by signal 9")
    assert supervisor.next_timer_s() == 11.0
    assert supervisor.on_timer(10.99) == []
    assert supervisor.on_timer(11.0) == [Action(Verb.START, "learner")]
    assert process.restarts_total == 1


def test_service_that_cannot_be_asked_ends_the_run_at_its_first_start_alone() -> None:
    """Its settings or files are wrong then. After a restart they were right before: it has the time for a start."""
    supervisor = _running()
    supervisor.on_exit("learner", -9, 10.0)
    supervisor.on_timer(11.0)
    assert supervisor.on_out_of_reach("learner", "its certificate has expired", 12.0) == []
    assert supervisor.outcome is None
    supervisor = _cluster()
    supervisor.start(0.0)
    assert supervisor.on_out_of_reach("replay", "it speaks plaintext", 1.0)
    assert supervisor.outcome == Outcome(2, "replay is out of reach: it speaks plaintext")


def test_backoff_doubles_with_each_restart_up_to_thirty_seconds() -> None:
    """1, 2, 4, 8, 16, 30, 30 seconds."""
    settings = LauncherSettings(max_restarts=7, restart_backoff_s=1.0, start_timeout_s=60.0)
    supervisor = Supervisor([_spec("replay")], settings)
    supervisor.start(0.0)
    pauses = []
    for _ in range(7):
        supervisor.on_exit("replay", 1, 0.0)
        due_s = supervisor.next_timer_s()
        assert due_s is not None
        pauses.append(due_s)
        supervisor.on_timer(due_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_restart_limit_ends_the_run_as_failed() -> None:
    """The fourth exit within ten minutes is one too many for a limit of three."""
    supervisor = Supervisor([_spec("replay"), _spec("actor-0")], _SETTINGS)
    supervisor.start(0.0)
    for now_s in (10.0, 20.0, 30.0):
        assert supervisor.on_exit("replay", 1, now_s) == []
        supervisor.on_timer(now_s + 5.0)
    assert supervisor.on_exit("replay", 1, 40.0) == [Action(Verb.TERMINATE, "actor-0")]
    assert supervisor.outcome == Outcome(1, "replay ended with exit code 1, after 3 restarts within ten minutes")
    assert not supervisor.is_over
    supervisor.on_exit("actor-0", 0, 41.0)
    assert supervisor.is_over


def test_restart_of_what_its_environment_held_up_is_not_counted() -> None:
    """It made steps until then, and may make more; the pause stays the first one."""
    supervisor = _running()
    for now_s in range(0, 100, 10):
        supervisor.on_exit("actor-0", HELD_UP, float(now_s))
        assert supervisor.next_timer_s() == now_s + 1.0
        supervisor.on_timer(now_s + 1.0)
    assert supervisor.outcome is None
    assert supervisor.processes["actor-0"].reason == "ended because its environment hung"


@pytest.mark.parametrize("exit_code", [HELD_UP, 1])
def test_all_restarts_of_an_actor_that_gets_no_further_in_its_history_are_counted(exit_code: int) -> None:
    """A failure that follows from what is recorded recurs at every start, however long that takes to reach it."""
    supervisor = Supervisor([_PLAYS_AGAIN], _SETTINGS)
    supervisor.start(0.0)
    for round_ in range(4):
        assert supervisor.outcome is None
        supervisor.on_exit("actor-0", exit_code, round_ * 3600.0, recorded_bytes=500)
        supervisor.on_timer(round_ * 3600.0 + 60.0)
        supervisor.on_serving("actor-0", round_ * 3600.0 + 61.0)
    assert supervisor.outcome == Outcome(1, f"actor-0 {describe_exit(exit_code)}, after 3 restarts")


@pytest.mark.parametrize("exit_code", [HELD_UP, -9])
def test_restarts_of_an_actor_that_gets_further_than_its_history_are_forgotten(exit_code: int) -> None:
    """By chance it is killed or hangs once an hour, and plays more rounds each time: as with any other process."""
    supervisor = Supervisor([_PLAYS_AGAIN], _SETTINGS)
    supervisor.start(0.0)
    for hour in range(20):
        supervisor.on_serving("actor-0", hour * 3600.0)
        supervisor.on_exit("actor-0", exit_code, hour * 3600.0 + 1.0, recorded_bytes=500 * (hour + 1))
        assert supervisor.next_timer_s() == hour * 3600.0 + 2.0
        supervisor.on_timer(hour * 3600.0 + 2.0)
    assert supervisor.outcome is None


def test_restarts_older_than_ten_minutes_are_forgotten() -> None:
    """A service that fails now and then over a long run is restarted every time, with the first backoff."""
    supervisor = Supervisor([_spec("replay")], _SETTINGS)
    supervisor.start(0.0)
    for round_ in range(20):
        now_s = round_ * 601.0
        supervisor.on_serving("replay", now_s)
        supervisor.on_exit("replay", 1, now_s)
        assert supervisor.next_timer_s() == now_s + 1.0
        supervisor.on_timer(now_s + 1.0)
        supervisor.on_timer(now_s + 1.0)
    assert supervisor.outcome is None
    assert supervisor.processes["replay"].restarts_total == 20


def test_service_that_never_becomes_healthy_ends_the_run() -> None:
    """Six starts of two minutes each take longer than ten minutes, and all count while none of them succeeds."""
    supervisor = Supervisor([_spec("evaluator")], LauncherSettings())
    supervisor.start(0.0)
    starts = 0
    while supervisor.outcome is None and starts < 9:
        now_s = supervisor.next_timer_s()
        assert now_s is not None
        for action in supervisor.on_timer(now_s):
            if action.verb is Verb.KILL:
                starts += 1
                supervisor.on_exit("evaluator", -9, now_s)
    late = "was not healthy within 120 s (launcher.start_timeout_s)"
    assert supervisor.outcome == Outcome(1, f"evaluator {late}, after 5 restarts")


def test_exit_code_two_is_never_restarted() -> None:
    """Wrong settings stay wrong: the run ends with the code of bad usage."""
    supervisor = _running()
    supervisor.on_exit("actor-1", 2, 5.0)
    assert supervisor.outcome == Outcome(2, "actor-1 refused its settings or files")


def test_process_whose_environment_keeps_failing_is_not_restarted() -> None:
    """It has tried that itself: the run ends, and the settings that decide are named."""
    supervisor = _running()
    supervisor.on_exit("actor-1", ENV_FAILED, 5.0)
    why = "actor-1 ended because its environment failed (env.on_failure, env.max_restarts)"
    assert supervisor.outcome == Outcome(1, why)


def test_service_that_is_not_healthy_in_time_is_killed_and_restarted() -> None:
    """The reason names the time it had, and the setting."""
    supervisor = _cluster()
    supervisor.start(0.0)
    assert set(_names(supervisor.on_timer(60.0), Verb.KILL)) == set(supervisor.processes) - {"evaluator"}
    supervisor.on_exit("replay", -9, 60.5)
    assert supervisor.processes["replay"].reason == "was not healthy within 60 s (launcher.start_timeout_s)"
    assert supervisor.processes["replay"].phase is Phase.BACKOFF


def test_service_that_leaves_checks_unanswered_is_killed_at_the_bound_and_restarted() -> None:
    """Frozen for `frozen_timeout_s` it is killed, once, and comes back like any that died; the reason is reported."""
    supervisor = _running()
    assert supervisor.on_silent("learner", 25.0, listens=True) == []
    assert supervisor.on_silent("learner", 30.0, listens=True) == [Action(Verb.KILL, "learner")]
    assert supervisor.on_silent("learner", 35.0, listens=True) == []
    supervisor.on_exit("learner", -9, 40.0)
    assert supervisor.processes["learner"].reason == "did not answer for 30 s"
    assert supervisor.on_timer(41.0) == [Action(Verb.START, "learner")]
    supervisor.on_serving("learner", 42.0)
    supervisor.on_exit("learner", -9, 50.0)
    assert supervisor.processes["learner"].reason == "was killed by signal 9"


def test_service_that_takes_no_connections_has_the_time_of_a_start() -> None:
    """Several learners are restarted by a separate process, which keeps running meanwhile: 60 s here, not 30."""
    supervisor = _running()
    assert supervisor.on_silent("learner", 55.0, listens=False) == []
    assert supervisor.on_silent("learner", 60.0, listens=False) == [Action(Verb.KILL, "learner")]


def test_service_that_is_being_stopped_is_not_killed_for_its_silence() -> None:
    """It has stop_timeout_s, whatever its health service does."""
    supervisor = _running()
    supervisor.on_stop_requested(10.0)
    assert supervisor.on_silent("actor-0", 60.0, listens=True) == []


def test_stop_ends_one_group_after_another() -> None:
    """Actors, then learner and evaluator, then the servers; each group waits for the one before."""
    supervisor = _running()
    assert _names(supervisor.on_stop_requested(10.0), Verb.TERMINATE) == ["actor-0", "actor-1"]
    assert supervisor.on_exit("actor-0", 0, 10.1) == []
    assert _names(supervisor.on_exit("actor-1", 0, 10.2), Verb.TERMINATE) == ["learner", "evaluator"]
    assert supervisor.on_exit("learner", 0, 10.3) == []
    assert _names(supervisor.on_exit("evaluator", 0, 10.4), Verb.TERMINATE) == ["replay", "paramserver"]
    ends = []
    for name in ("replay", "paramserver"):
        supervisor.on_exit(name, 0, 10.5)
        ends.append(supervisor.is_over)
    assert ends == [False, True]
    assert supervisor.outcome == Outcome(0, "stopped as asked")


def test_stop_kills_what_does_not_end_in_time() -> None:
    """After stop_timeout_s SIGTERM becomes SIGKILL, and the order continues."""
    supervisor = Supervisor([_spec("learner"), _spec("replay")], _SETTINGS)
    supervisor.start(0.0)
    supervisor.on_stop_requested(10.0)
    assert supervisor.next_timer_s() == 30.0
    assert supervisor.on_timer(30.0) == [Action(Verb.KILL, "learner")]
    assert supervisor.next_timer_s() is None
    assert supervisor.on_exit("learner", -9, 30.1) == [Action(Verb.TERMINATE, "replay")]


_LATE = "did not end within 20 s (launcher.stop_timeout_s) and was killed"
_LOST = f"learner {_LATE}: its updates since the last checkpoint are lost"
_UNDRAWN = f"evaluator {_LATE}: the learning curve may be missing; `tidemill plot` draws one"


@pytest.mark.parametrize(
    "killed, outcome",
    [
        (("actor-0",), Outcome(0, "stopped as asked")),
        (("evaluator",), Outcome(0, f"stopped as asked; {_UNDRAWN}")),
        (("learner", "evaluator"), Outcome(1, f"stopped as asked; {_LOST}; {_UNDRAWN}")),
    ],
)
def test_stop_that_kills_says_so(killed: tuple[str, ...], outcome: Outcome) -> None:
    """Updates that are lost make it a failure, as at the second request; a picture can be drawn later."""
    supervisor = _running()
    actions = supervisor.on_stop_requested(10.0)
    while not supervisor.is_over:
        ended = [each.service for each in actions if each.service not in killed]
        actions = [action for name in ended for action in supervisor.on_exit(name, 0, 11.0)]
        for action in [] if actions else supervisor.on_timer(60.0):
            assert supervisor.processes[action.service].fault.startswith(_LATE)
            actions += supervisor.on_exit(action.service, -9, 60.0)
    assert supervisor.outcome == outcome


@pytest.mark.parametrize("exit_code", [1, -9])
def test_stop_of_a_learner_that_cannot_save_its_last_updates_says_so(exit_code: int) -> None:
    """It was asked to end and failed, on a full disk or out of memory: lost as if the launcher had killed it."""
    supervisor = _running()
    supervisor.on_stop_requested(10.0)
    for name in ("actor-0", "actor-1", "learner", "evaluator", "replay", "paramserver"):
        supervisor.on_exit(name, exit_code if name == "learner" else 0, 11.0)
    lost = f"learner {describe_exit(exit_code)}: its updates since the last checkpoint are lost"
    assert supervisor.outcome == Outcome(1, f"stopped as asked; {lost}")


@pytest.mark.parametrize("asked_again", [False, True])
def test_learner_that_the_launcher_kills_is_not_said_to_have_failed_as_well(*, asked_again: bool) -> None:
    """Its end by signal 9 follows, and adds nothing to the outcome."""
    supervisor = _running()
    supervisor.on_stop_requested(10.0)
    for name in ("actor-0", "actor-1"):
        supervisor.on_exit(name, 0, 11.0)
    killed = supervisor.on_stop_requested(12.0) if asked_again else supervisor.on_timer(60.0)
    assert Action(Verb.KILL, "learner") in killed
    said = supervisor.outcome
    supervisor.on_exit("learner", -9, 61.0)
    assert supervisor.outcome == said


def test_stop_of_a_learner_that_never_trained_loses_nothing() -> None:
    """It was still starting, and failed as it was asked to end."""
    supervisor = _cluster()
    supervisor.start(0.0)
    supervisor.on_stop_requested(1.0)
    for name in ("actor-0", "actor-1", "learner", "replay", "paramserver"):
        supervisor.on_exit(name, int(name == "learner"), 2.0)
    assert supervisor.outcome == Outcome(0, "stopped as asked")


@pytest.mark.parametrize("outcome", [Outcome(0, "finished"), Outcome(2, "replay refused its settings or files")])
def test_run_that_ended_keeps_its_exit_code_when_its_learner_is_killed(outcome: Outcome) -> None:
    """It has its result, or had failed before."""
    supervisor = _running()
    name = "evaluator" if outcome.exit_code == 0 else "replay"
    supervisor.on_exit(name, outcome.exit_code, 9.0, has_result=True)
    for actor in ("actor-0", "actor-1"):
        supervisor.on_exit(actor, 0, 10.0)
    supervisor.on_exit("evaluator", 0, 10.0)
    assert supervisor.on_timer(60.0) == [Action(Verb.KILL, "learner")]
    assert supervisor.outcome == Outcome(outcome.exit_code, f"{outcome.reason}; {_LOST}")


def test_services_that_do_not_end_are_all_killed_within_the_longest_stop() -> None:
    """Four groups, each killed after its time."""
    names = ("replay", "paramserver", "learner", "inference-0", "actor-0", "evaluator")
    supervisor = Supervisor(list(map(_spec, names)), _SETTINGS)
    supervisor.start(0.0)
    supervisor.on_stop_requested(0.0)
    now_s = 0.0
    while (due_s := supervisor.next_timer_s()) is not None:
        now_s = due_s
        for action in supervisor.on_timer(now_s):
            supervisor.on_exit(action.service, -9, now_s)
    assert supervisor.is_over
    assert now_s == _SETTINGS.longest_stop_s


def test_actor_that_outlives_the_run_it_acted_for_is_killed_in_time() -> None:
    """Asked to end when the learner had finished, and still there when the evaluator has: the run ends nevertheless."""
    supervisor = _running()
    assert "actor-0" in _names(
        [action for action in supervisor.on_exit("learner", 0, 100.0) if action.verb is Verb.TERMINATE], Verb.TERMINATE
    )
    supervisor.on_exit("actor-1", 0, 101.0)
    supervisor.on_exit("evaluator", 0, 110.0, has_result=True)
    assert supervisor.next_timer_s() == 120.0
    assert supervisor.on_timer(120.0) == [Action(Verb.KILL, "actor-0")]
    assert _names(supervisor.on_exit("actor-0", -9, 120.1), Verb.TERMINATE) == ["replay", "paramserver"]


def test_stop_asked_twice_kills_everything() -> None:
    """The second Ctrl-C does not wait for an order."""
    supervisor = _running()
    supervisor.on_stop_requested(10.0)
    assert set(_names(supervisor.on_stop_requested(10.5), Verb.KILL)) == set(supervisor.processes)
    assert supervisor.outcome is not None
    assert supervisor.outcome.exit_code == 1  # what was not saved is lost
    assert {process.phase for process in supervisor.processes.values()} == {Phase.STOPPING}  # their ends are expected


def test_stop_does_not_start_what_was_waiting_to_be_started() -> None:
    """A service in its backoff, or not yet started, is over when the run is."""
    supervisor = _cluster()
    supervisor.start(0.0)
    supervisor.on_exit("actor-0", -9, 5.0)
    supervisor.on_stop_requested(5.5)
    assert supervisor.on_timer(100.0) == [Action(Verb.KILL, "actor-1")]
    assert supervisor.processes["actor-0"].phase is Phase.ENDED
    assert supervisor.processes["evaluator"].phase is Phase.ENDED


@pytest.mark.parametrize("exit_code", [0, 1, -11])
def test_evaluator_that_wrote_its_result_ends_the_run(exit_code: int) -> None:
    """The result is the end of the run, also if an environment crashes as it is closed; the rest stops in order."""
    supervisor = _running()
    actions = supervisor.on_exit("evaluator", exit_code, 50.0, has_result=True)
    assert _names(actions, Verb.TERMINATE) == ["actor-0", "actor-1"]
    assert supervisor.outcome == Outcome(0, "finished")


def test_evaluator_that_was_only_stopped_is_restarted() -> None:
    """Exit code 0 without a result means someone ended the process, not the run."""
    supervisor = _running()
    supervisor.on_exit("evaluator", 0, 50.0)
    assert supervisor.outcome is None
    assert supervisor.processes["evaluator"].phase is Phase.BACKOFF


@pytest.mark.parametrize(
    "lives, steps, words",
    [
        (1, 90, "the learner ended with exit code 1, and the run ended before it was back"),
        (2, 0, "the learner ended with exit code 1, and never made an update"),
        (2, 90, ""),
    ],
)
def test_run_that_ends_without_its_learner_has_failed(lives: int, steps: int, words: str) -> None:
    """At run.max_wall_s the evaluator ends it. It succeeds with a learner that is back and has trained."""
    supervisor = _running()
    supervisor.on_exit("learner", 1, 10.0)
    supervisor.on_timer(11.0)
    if lives == 2:
        supervisor.on_serving("learner", 12.0)
    supervisor.on_exit("evaluator", 0, 13.0, has_result=True)
    assert supervisor.outcome == Outcome(0, "finished")
    status = LearnerStatus(LearnerState.TRAINING, steps)
    assert describe_failed_learner(supervisor, status, {"reason": "run.max_wall_s (14) reached"}) == words


@pytest.mark.parametrize("learner_ends_first", [False, True])
@pytest.mark.parametrize(
    "state, evaluated, words",
    [
        (LearnerState.WAITING, 0, "the learner was killed by signal 9, and never made an update"),
        (LearnerState.WAITING, 7, ""),  # its status is from before them
        (LearnerState.STARTING, 0, "the learner was killed by signal 9, and never made an update"),
    ],
)
def test_run_without_an_update_has_failed_whoever_ends_first(
    state: LearnerState, evaluated: int, words: str, *, learner_ends_first: bool
) -> None:
    """At run.max_wall_s the learner ends in order, while the evaluator still plays its last episodes."""
    supervisor = _running()
    supervisor.on_exit("learner", -9, 10.0)
    supervisor.on_timer(11.0)
    supervisor.on_serving("learner", 12.0)
    if learner_ends_first:
        supervisor.on_exit("learner", 0, 13.0)
    supervisor.on_exit("evaluator", 0, 14.0, has_result=True)
    assert supervisor.outcome == Outcome(0, "finished")
    result = {"reason": "run.max_wall_s (14) reached", "learner_steps": evaluated}
    assert describe_failed_learner(supervisor, LearnerStatus(state, 0), result) == words


@pytest.mark.parametrize("steps, words", [(0, "the learner lost rank 1, and never made an update"), (9, "")])
def test_run_whose_learners_never_made_an_update_has_failed(steps: int, words: str) -> None:
    """Torchrun starts several learners again by itself, in a process that continues; it leaves word of the failure."""
    supervisor = _running()
    supervisor.on_exit("evaluator", 0, 13.0, has_result=True)
    status, result = LearnerStatus(LearnerState.STARTING, 0), {"learner_steps": steps}
    assert describe_failed_learner(supervisor, status, result, "lost rank 1") == words
    assert describe_failed_learner(supervisor, status, result) == ""


def test_run_that_was_complete_has_not_failed_with_its_learner() -> None:
    """Killed behind the version that met the limit, or restored so shortly before its end that no status told."""
    supervisor = _running()
    supervisor.on_exit("learner", -9, 10.0)
    supervisor.on_exit("evaluator", 0, 13.0, has_result=True)
    status = LearnerStatus(LearnerState.STARTING, 0)
    assert describe_failed_learner(supervisor, status, {"reason": "run.max_env_steps (100) reached"}) == ""
    supervisor = _running()
    supervisor.on_exit("learner", -9, 10.0)
    supervisor.on_timer(11.0)
    supervisor.on_serving("learner", 12.0)
    assert describe_failed_learner(supervisor, status, {}) == ""
    supervisor.on_exit("learner", 0, 13.0)
    assert describe_failed_learner(supervisor, None, {}) == ""


def test_run_that_was_stopped_has_not_failed_with_its_learner() -> None:
    """Ctrl-C while the learner is down ends with 0, as at any other time."""
    supervisor = _running()
    supervisor.on_exit("learner", 1, 10.0)
    supervisor.on_stop_requested(10.5)
    assert describe_failed_learner(supervisor, None, {}) == ""


def test_learner_that_has_finished_leaves_the_last_word_to_the_evaluator() -> None:
    """Actors end, the evaluator is asked for the final evaluation, the learner is not restarted."""
    supervisor = _running()
    actions = supervisor.on_exit("learner", 0, 50.0)
    assert actions == [
        Action(Verb.TERMINATE, "actor-0"),
        Action(Verb.TERMINATE, "actor-1"),
        Action(Verb.FINISH, "evaluator"),
    ]
    assert supervisor.on_exit("actor-0", 0, 50.1) == []
    assert supervisor.on_exit("actor-1", 0, 50.1) == []
    actions = supervisor.on_exit("evaluator", 0, 55.0, has_result=True)
    assert _names(actions, Verb.TERMINATE) == ["replay", "paramserver"]
    assert supervisor.outcome == Outcome(0, "finished")


def test_evaluator_that_restarts_after_the_learner_finished_is_asked_again() -> None:
    """The final evaluation survives a crash of the evaluator."""
    supervisor = _running()
    supervisor.on_exit("learner", 0, 50.0)
    supervisor.on_exit("evaluator", -11, 51.0)
    assert supervisor.on_timer(52.0) == [Action(Verb.START, "evaluator")]
    assert supervisor.on_serving("evaluator", 55.0) == [Action(Verb.FINISH, "evaluator")]


def test_learner_that_has_finished_ends_a_run_without_evaluator() -> None:
    """There is nothing left to wait for."""
    supervisor = Supervisor([_spec("learner"), _spec("actor-0")], _SETTINGS)
    supervisor.start(0.0)
    assert supervisor.on_exit("learner", 0, 5.0) == [Action(Verb.TERMINATE, "actor-0")]
    assert supervisor.outcome == Outcome(0, "the learner has finished")


@pytest.mark.parametrize(
    "exit_code, words",
    [(-9, "was killed by signal 9"), (GPU_LOST, "ended because it has lost its GPU"), (1, "ended with exit code 1")],
)
def test_exit_is_described_in_words(exit_code: int, words: str) -> None:
    """A negative code is a signal, as in subprocess."""
    assert describe_exit(exit_code) == words


def test_inference_services_end_after_the_actors_that_they_serve() -> None:
    """On request one after the other. After training only actors end: clients may play the last evaluation."""
    names = ("replay", "paramserver", "learner", "inference-0", "actor-0", "evaluator")
    for learner_finished in (False, True):
        supervisor = Supervisor([*map(_spec, names)], _SETTINGS)
        supervisor.start(0.0)
        for name in supervisor.processes:
            supervisor.on_serving(name, 1.0)
        if learner_finished:
            ended = [a.service for a in supervisor.on_exit("learner", 0, 2.0) if a.verb is Verb.TERMINATE]
            assert ended == ["actor-0"]
            continue
        assert _names(supervisor.on_stop_requested(2.0), Verb.TERMINATE) == ["actor-0"]
        assert _names(supervisor.on_exit("actor-0", 0, 3.0), Verb.TERMINATE) == ["inference-0"]
        assert _names(supervisor.on_exit("inference-0", 0, 4.0), Verb.TERMINATE) == ["learner", "evaluator"]


def test_stop_asked_while_the_run_ends_kills_nothing() -> None:
    """The learner may be writing its checkpoint, and the outcome stays; asked once more, it is the second time."""
    supervisor = _running()
    supervisor.on_exit("evaluator", 0, 50.0, has_result=True)
    ends = supervisor.outcome
    assert supervisor.on_stop_requested(51.0) == []
    assert supervisor.outcome == ends
    assert "learner" in _names(supervisor.on_stop_requested(52.0), Verb.KILL)
