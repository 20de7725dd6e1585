"""Proposal of the next values of a sweep."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tidemill.errors import ConfigError
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.plan import Sweep
from tidemill.services.tools.sweep.space import Parameter, Values, draw, grid


def check_method(sweep: Sweep) -> None:
    """Raise a `ConfigError` if the method needs a package that is not installed."""
    if sweep.settings.method == "tpe" and importlib.util.find_spec("optuna") is None:
        raise ConfigError("method: tpe needs Optuna: pip install 'tidemill[sweep]'")


def propose(sweep: Sweep, trials: Sequence[Trial]) -> Values:
    """Return the values of the next trial, given those before it."""
    number, settings = len(trials), sweep.settings
    if settings.method == "grid":
        return next(islice(grid(sweep.space), number, None))
    if settings.method == "random":
        return draw(sweep.space, settings.seed, number)
    return _propose_by_optuna(sweep, trials)


def _propose_by_optuna(sweep: Sweep, trials: Sequence[Trial]) -> Values:
    """Return the proposal of Optuna's TPE sampler after the trials so far.

    The study is made again from the journal each time: nothing else has to be kept, and a sweep that was killed
    continues as it would have. Trials under way count as bad for now, so that the same place is not proposed again.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=sweep.settings.seed + len(trials), n_startup_trials=10)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {parameter.name: _distribution(parameter) for parameter in sweep.space}
    scores = [trial.score for trial in trials if trial.score is not None]
    for trial in trials:
        score = trial.score if trial.has_ended(sweep.settings.seeds) else None
        params = {each.name: _encoded(each, trial.values[each.name]) for each in sweep.space}
        value = score if score is not None else min(scores, default=0.0)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    asked = study.ask(distributions).params
    return {each.name: _decoded(each, asked[each.name]) for each in sweep.space}


def _distribution(parameter: Parameter) -> Any:  # noqa: ANN401 - Optuna's own
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.kind == "choice":
        return CategoricalDistribution(list(range(len(parameter.values))))
    kind = IntDistribution if parameter.is_whole else FloatDistribution
    return kind(*parameter.values, log=parameter.is_log)


def _encoded(parameter: Parameter, value: Any) -> Any:  # noqa: ANN401
    """Return a choice as its index, for it may be a list, which Optuna does not take."""
    return parameter.values.index(value) if parameter.kind == "choice" else value


def _decoded(parameter: Parameter, value: Any) -> Any:  # noqa: ANN401
    return parameter.values[value] if parameter.kind == "choice" else value
