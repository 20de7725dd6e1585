"""Settings that inference services need of the rest of a run."""

from __future__ import annotations

from typing import Any

from tidemill.rl.settings.registry import ALGORITHMS
from tidemill.settings.check import check_that, collecting, refuse


def check_inference(settings: Any, actors: int = 0) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if inference services cannot act for the actors or simulators of a run.

    Of the sections a process has, those are checked that it reads. How many actors and services there are is known
    where the launcher's settings are.

    Args:
        settings: Of the process.
        actors: How many use the services of `cluster.inference`, which have these settings; 0 if that is not known.
    """
    cluster, agent, learner = (getattr(settings, name, None) for name in ("cluster", "agent", "learner"))
    if cluster is None or agent is None or learner is None:
        return
    inference, launcher = (getattr(settings, name, None) for name in ("inference", "launcher"))
    if inference is not None:
        _check_simulators(inference.simulators, agent.algorithm, learner.max_policy_lag)
    started = getattr(launcher, "inference", 0)
    if not (started or cluster.inference):
        return
    is_set = f"launcher.inference is {started}" if started else "cluster.inference is set"
    check_that(
        learner.max_policy_lag < 0,
        f"{is_set}, but learner.max_policy_lag is {learner.max_policy_lag}: the service always acts with the newest "
        f"version, so actors cannot keep this bound; set it to -1, or leave {is_set.split(maxsplit=1)[0]} out",
    )
    if launcher is not None and launcher.actors and not settings.env.spaces:
        problems: list[str] = []
        with collecting(problems):
            _check_priorities(settings, is_set)
        with collecting(problems):
            if started:
                _check_sizes(settings, is_set, started, f"launcher.actors is {launcher.actors}", launcher.actors)
            elif actors:
                several = len(cluster.inference)
                _check_sizes(
                    settings, f"cluster.inference lists {several}", several, f"actor.count is {actors}", actors
                )
        refuse(problems)


def _check_simulators(count: int, algorithm: str, max_policy_lag: int) -> None:
    check_that(
        not count or max_policy_lag < 0,
        f"inference.simulators is {count}, but learner.max_policy_lag is {max_policy_lag} for agent.algorithm "
        f"{algorithm!r}, and simulators cannot wait for a version of the parameters: set learner.max_policy_lag to -1 "
        "(of these algorithms only impala corrects for the age of an item), or use one that learns from a replay, such "
        "as dqn, sac or td3",
    )


def _check_priorities(settings: Any, is_set: str) -> None:  # noqa: ANN401 - as above
    agent = settings.agent
    uses_params = agent.algorithm in ALGORITHMS and agent.priority_uses_params  # a user's is asked when it is tried
    needs_own = settings.table.sampler == "prioritized" and uses_params
    check_that(
        not needs_own or settings.actor.inference_fallback == "local",
        f"{is_set} and table.sampler is 'prioritized', but initial priorities of agent.algorithm {agent.algorithm!r} "
        "need the parameters in the actor: set actor.inference_fallback to 'local', or launcher.actors to 0 if "
        "simulators alone play",
    )


def _check_sizes(settings: Any, is_set: str, services: int, how_many: str, actors: int) -> None:  # noqa: ANN401 - as above
    inference, num_envs = settings.inference, settings.env.num_envs
    check_that(
        num_envs <= inference.max_batch,
        f"env.num_envs is {num_envs}, but inference.max_batch is {inference.max_batch} and {is_set}: an actor may not "
        "have more environments than fit in one forward pass; raise inference.max_batch, or lower env.num_envs",
    )
    places = services * inference.max_streams
    check_that(
        actors <= places or settings.actor.inference_fallback == "local",
        f"{how_many}, but {is_set} and inference.max_streams is {inference.max_streams}: "
        f"only {places} actors can connect, and the others would wait for ever; add inference services, raise "
        "inference.max_streams, or set actor.inference_fallback to 'local'",
    )
