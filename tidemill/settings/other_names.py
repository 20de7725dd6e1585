"""Hints for unknown names of settings: a similar name, or the name that another tool has for the setting."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.settings.check import closest

_SWITCH = ("true", "false")
_CUTOFF = 0.7
_CUTOFF_OF_ALL = 0.8

_LEARNING_RATE = ("agent.learning_rate", "agent.critic_learning_rate")

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "algo": ("agent.algorithm",),
    "algorithm": ("agent.algorithm",),
    "batch_size": ("agent.batch_size",),
    "batchsize": ("agent.batch_size",),
    "mini_batch_size": ("agent.batch_size",),
    "buffer_size": ("table.max_items",),
    "capacity": ("table.max_items",),
    "capture_video": ("evaluator.video",),
    "checkpoint_freq": ("learner.checkpoint_every_s",),
    "clip_coef": ("agent.clip",),
    "clip_range": ("agent.clip",),
    "cuda": ("learner.device",),
    "device": ("learner.device",),
    "discount": ("agent.gamma",),
    "ent_coef": ("agent.entropy_coefficient", "agent.initial_temperature"),
    "end_e": ("agent.epsilon_final",),
    "env": ("env.id",),
    "env_id": ("env.id",),
    "env_kwargs": ("env.kwargs",),
    "env_name": ("env.id",),
    "environment": ("env.id",),
    "epsilon": ("agent.epsilon_final", "agent.ladder_base"),
    "episodes": ("evaluator.episodes",),
    "eval_episodes": ("evaluator.episodes",),
    "eval_freq": ("evaluator.every_env_steps",),
    "exp_name": ("run.name",),
    "experiment_name": ("run.name",),
    "exploration_final_eps": ("agent.epsilon_final",),
    "exploration_fraction": ("agent.epsilon_decay_steps",),
    "exploration_initial_eps": ("agent.epsilon_start",),
    "gpu": ("learner.device",),
    "gradient_steps": ("learner.updates_per_env_step",),
    "gym_id": ("env.id",),
    "hidden_dim": ("agent.hidden_sizes",),
    "hidden_size": ("agent.hidden_sizes",),
    "hidden_units": ("agent.hidden_sizes",),
    "learning_rate": _LEARNING_RATE,
    "learning_starts": ("table.min_size",),
    "log_dir": ("run.root",),
    "logdir": ("run.root",),
    "lr": _LEARNING_RATE,
    "max_steps": ("run.max_env_steps",),
    "max_timesteps": ("run.max_env_steps",),
    "memory_size": ("table.max_items",),
    "minibatch_size": ("agent.minibatches",),
    "n_envs": ("env.num_envs",),
    "n_epochs": ("agent.epochs",),
    "n_eval_episodes": ("evaluator.episodes",),
    "n_steps": ("agent.unroll", "agent.n_step"),
    "n_timesteps": ("run.max_env_steps",),
    "net_arch": ("agent.hidden_sizes",),
    "num_actors": ("launcher.actors",),
    "num_env_steps": ("run.max_env_steps",),
    "num_gpus": ("launcher.learners",),
    "num_learners": ("launcher.learners",),
    "num_minibatches": ("agent.minibatches",),
    "num_steps": ("agent.unroll", "agent.n_step"),
    "num_workers": ("launcher.actors",),
    "output_dir": ("run.root",),
    "policy": ("agent.network",),
    "polyak": ("agent.tau",),
    "prioritized": ("table.sampler",),
    "prioritized_replay": ("table.sampler",),
    "project": ("launcher.loggers",),
    "replay_buffer_size": ("table.max_items",),
    "replay_size": ("table.max_items",),
    "results_dir": ("run.root",),
    "save_freq": ("learner.checkpoint_every_s",),
    "start_e": ("agent.epsilon_start",),
    "target_network_frequency": ("agent.target_update_period", "agent.tau"),
    "target_reward": ("run.target_return",),
    "target_update_interval": ("agent.target_update_period", "agent.tau"),
    "time_limit": ("run.max_wall_s",),
    "total_steps": ("run.max_env_steps",),
    "total_timesteps": ("run.max_env_steps",),
    "track": ("launcher.loggers",),
    "train_freq": ("learner.updates_per_env_step",),
    "train_frequency": ("learner.updates_per_env_step",),
    "update_epochs": ("agent.epochs",),
    "updates_per_step": ("learner.updates_per_env_step",),
    "utd_ratio": ("learner.updates_per_env_step",),
    "verbose": ("log.level",),
    "vf_coef": ("agent.value_coefficient",),
    "wandb": ("launcher.loggers",),
    "workers": ("launcher.actors",),
}
"""What other tools call a setting, and what may be meant here; of these the first that the process has."""


def meant(path: Sequence[str], settings: object, value: object, *, option: bool, section: str = "") -> str:
    """Return a hint at the setting that was probably meant, as `; did you mean '--run.seed'?`; empty if none is near.

    Args:
        path: The name as written, its parts with underscores.
        settings: The dataclass of all sections, or of one.
        value: What it was to be; of the near names only those of settings of that kind are meant. None fits each.
        option: Whether to name it as a command line does.
        section: Which section that is; empty for all.
    """
    kinds = dict(_kinds(settings, f"{section}." if section else ""))
    known = [name for name, kind in kinds.items() if not dataclasses.is_dataclass(kind)]
    others = OTHER_NAMES.get(path[-1].removeprefix("no_"), ())
    elsewhere = (each for each in others if each in known or (section and not each.startswith(f"{section}.")))
    if (name := next(elsewhere, "")) and name != ".".join(path):
        return f"; here it is {_written(name, option=option)}"
    if others and all(each.startswith("agent.") for each in others) and "agent.algorithm" in known:
        return "; this algorithm has no such setting: `--help agent` lists those that it has"
    if near := _nearest(path, [name for name, kind in kinds.items() if _takes(kind, value)]):
        return f"; did you mean {_written(near, option=option)}?"
    first = list(dict.fromkeys(name.partition(".")[0] for name in known))
    if option and path[0] not in first:
        if first == known:
            return "; options are " + ", ".join(f"--{name}".replace("_", "-") for name in known)
        return f"; sections are {', '.join(first)}"
    return ""


def _nearest(path: Sequence[str], known: Sequence[str]) -> str:
    """Return the known name that was probably meant; empty if none is near.

    That is a mistyped name of the same section, otherwise of another one, or a name with a mistyped section. What a
    name shares with another by being in the same section is not compared.
    """
    section, leaf = ".".join(path[:-1]), path[-1]
    leaves = {name.rpartition(".")[2]: name for name in reversed(known)}
    own = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    if close := closest(leaf, own, _CUTOFF):
        return own[close]
    if section and not own:
        return closest(".".join(path), known, _CUTOFF_OF_ALL)
    return leaves.get(closest(leaf, leaves, _CUTOFF_OF_ALL), "")


def _kinds(settings: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name of each setting and section, and its type."""
    kinds = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield f"{prefix}{field.name}", type(value)
            yield from _kinds(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", kinds[field.name]


def _takes(kind: Any, value: object) -> bool:  # noqa: ANN401 - a type, or what typing has for one
    """True if a value has the type of a setting, even outside its range."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None or kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_takes(each, value) for each in arguments)
    if origin is tuple:
        return all(
            _takes((*arguments, Any)[0], each) for each in (value if isinstance(value, list | tuple) else [value])
        )
    if origin is typing.Literal:
        is_taken = isinstance(value, str) and not _is_number(value)
    elif origin is not None:
        is_taken = isinstance(value, Mapping | list)
    elif dataclasses.is_dataclass(kind):
        is_taken = isinstance(value, Mapping)
    elif kind in (int, float):
        is_taken = _is_number(value)
    else:
        is_taken = isinstance(value, kind) or (kind is bool and str(value).lower() in _SWITCH)
    return is_taken


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _written(name: str, *, option: bool) -> str:
    return repr(f"--{name.replace('_', '-')}" if option else name)
