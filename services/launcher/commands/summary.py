"""Lines printed when a run is resumed and when it has ended: its state and where its files are."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.config.sections import RunConfig
from tidemill.installation import activation, command_name, typed
from tidemill.learner.checkpoint_header import newest_header
from tidemill.learner.status import LearnerStatus
from tidemill.params.digest import describe_digest
from tidemill.scores import read_best, read_scores
from tidemill.services.launcher.run.continuation import describe_changes, progress, trained_s
from tidemill.services.launcher.run.folder import (
    has_policy,
    has_scores,
    has_trained,
    is_deterministic,
    name_of,
    plays_in_simulators_alone,
    with_run_paths,
)
from tidemill.services.launcher.run.paths import has_log, log_folders
from tidemill.services.launcher.supervise.supervisor import Outcome
from tidemill.services.launcher.view.curves import acts, describe_failures, env_failures, last_env_failure

_LIMIT = re.compile(r"run\.(max_\w+) \(([\d,.e+]+)\) reached")
_FILES = (
    ("result.json", "final summary"),
    ("scores.csv", "one row per evaluation"),
    ("plots/learning_curve.png", "learning curve"),
    ("videos", "the best policy: a video and its pictures"),
    ("params", "every kept version of the parameters"),
    ("checkpoints", "the learner's checkpoints"),
    ("replay", "the log of experience"),
    ("tensorboard", "curves for `tensorboard --logdir`"),
    ("metrics.jsonl", "the learner's metrics, an object per line"),
    ("curves", "curves of the actors and of the cluster"),
    ("logs", "one log per process"),
    ("config.yaml", "resolved settings and versions"),
)


def summarise(folder: Path, outcome: Outcome, learner: LearnerStatus | None = None) -> list[str]:
    """Return the closing lines of a run, given the last status of its learner."""
    lines = ["", f"{name_of(folder)}: {outcome.reason}"]
    result, steps = formats.read_json(folder / "result.json", formats.RESULT), -1
    if result:
        asked = learner.env_steps if learner is not None else 0
        steps = max(asked, result["env_steps"], result.get("trained_env_steps", 0))  # not of the version evaluated
        run = {"wall_s": max(trained_s(folder), result["wall_s"]), "env_steps": steps}
        lines.append(describe_result(result | run))
    if is_deterministic(folder) and (digest := describe_digest(folder / "params")):
        lines.append(f"parameters sha256 {digest}")
    if learner is not None and learner.checkpoint_error and (failed := _failed_checkpoint(folder, learner)):
        lines.append(failed)
    if failed := _failed_environments(folder, has_steps=steps != 0):
        lines.append(failed)
    lines += ["", f"In {folder}:"]
    lines += [f"  {name:26} {meaning}" for name, meaning in _FILES if _has_content(folder / name)]
    lines += ["", *_next_commands(folder, result)]
    if outcome.exit_code:
        lines.append(f"What went wrong: see {folder / 'logs'}")
    return lines


def _failed_environments(folder: Path, *, has_steps: bool) -> str:
    """Return how often the actors' environments failed, and the last reason; empty if none did and one was stepped."""
    if failures := describe_failures(env_failures(folder)):
        reason = last_env_failure(folder)
        last = f"; the last one: {reason}" if reason else ""
        return f"Environments of the actors failed ({failures}){last}. See {folder / 'logs'}/actor-*.log"
    if has_steps or acts(folder) or not any((folder / "logs").glob("actor-*.log")):
        return ""
    return f"The actors made no step. See {folder / 'logs'}/actor-*.log"


def _failed_checkpoint(folder: Path, learner: LearnerStatus) -> str:
    """Return how the last checkpoint failed; empty if the learner wrote one after its last status."""
    steps = newest_header(folder / "checkpoints").get("counters", {}).get("learner_steps", 0)
    if steps > learner.checkpoint_steps:
        return ""
    start = f"the previous one, of step {steps:,}" if steps else "scratch: there is no earlier one"
    return f"The last checkpoint failed: {learner.checkpoint_error}. A resumed run starts from {start}."


def _next_commands(folder: Path, result: dict[str, Any]) -> list[str]:
    """Return the commands that apply to the folder now, ready to type; `result` is empty if it has none."""
    command = command_name()
    if not has_trained(folder):
        return [f"It never trained: `{command} train` with the same run.name starts from scratch in its folder"]
    commands = [(typed("resume", folder), "continue training")]
    if result.get("solved"):  # with its target it would end at once
        commands = [(f"{typed('resume', folder)} --run.target-return none", "continue training without a target")]
    elif found := _LIMIT.match(result.get("reason", "")):
        name, limit = found[1], float(found[2].replace(",", ""))
        further = math.ceil(max(progress(folder)[name], limit) + limit)  # the last evaluation counts, too
        option = f"--run.{name.replace('_', '-')} {further}"
        commands = [(f"{typed('resume', folder)} {option}", "continue training as long again")]
    if result or has_policy(folder):  # also of a run that was interrupted
        commands.append((typed("export", folder), "write the policy to a folder to pass on"))
        if not plays_in_simulators_alone(folder):
            which = "best" if has_scores(folder) else "newest"
            commands.insert(0, (typed("evaluate", folder), f"play fresh episodes with the {which} policy"))
    width = max(len(words) for words, _ in commands)
    lines = ["Next:", *(f"  {words:{width}}  {meaning}" for words, meaning in commands)]
    if command != "tidemill" and activation():
        lines.append(f"After `{activation()}` you can type just `tidemill` in this shell.")
    return lines


def describe_result(result: dict[str, Any]) -> str:
    """Return a result in one line; its `wall_s` and `env_steps` are said to be those of the run."""
    had_target = result.get("target_return") is not None
    verdict = "solved" if result.get("solved") else "not solved" if had_target else "ended"
    confirmed = result.get("confirmed_mean")
    count = result.get("confirm_episodes")
    fresh = f", {confirmed:.1f} over {count} fresh episodes" if confirmed is not None else ""
    why = "" if result.get("solved") else f" ({result['reason']})"
    after = f"{verdict} after {result['wall_s']:.0f} s and {result['env_steps']:,} env steps{why}"
    mean, best = result.get("mean_return"), result.get("best_mean")
    if mean is None:
        return f"{after}: not evaluated"
    better = f"; best {best:.1f}, version {result['best_version']}" if best is not None and best > mean else ""
    return f"{after}: mean return {mean:.1f} over {result['episodes']} episodes{fresh}{better}"


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def describe_restored(folder: Path, config: RunConfig, before: RunConfig | None = None) -> list[str]:
    """Return lines that say what of a run with these settings continues where it was and what starts from scratch.

    They name the settings that were others `before`.
    """
    scores = read_scores(folder / "scores.csv")
    checkpoints = sorted(path.name for path in (folder / "checkpoints").glob("[!.]*.safetensors"))
    has_params = any((folder / "params").glob("*"))
    lines = [f"resuming {folder}"]
    if before is not None and (changes := describe_changes(before, config)):
        lines.append(f"  settings     {changes}")
    params = "the parameter server restores its versions" if has_params else "none were published"
    lines.append(f"  params       {params}")
    if checkpoints:
        lines.append(f"  learner      from its newest checkpoint ({checkpoints[-1]}); see below")
    else:
        lines.append("  learner      no checkpoint: it starts from scratch")
    if best := read_best(folder, config.run.target_return):
        trained = f"{scores[-1].wall_s:.0f} s of training"
        lines.append(f"  scores       {len(scores)} evaluations, best mean {best.mean:.1f}, {trained}")
    lines.append(f"  replay       {_replay(with_run_paths(config, folder))}")
    if config.run.deterministic:
        lines.append("  environments played again from the start: every actor continues the round it was in")
    elif config.launcher.actors or not config.inference.simulators:
        lines.append("  environments not restored: every actor starts new episodes, with a new epoch of its streams")
    if config.inference.simulators:
        lines.append("  simulators   clients connect again; an episode continues if its client has waited")
    return lines


def _replay(config: RunConfig) -> str:
    if not config.launcher.replay:
        return f"the tables of the service at {', '.join(config.cluster.replay)}, which another program runs"
    folders = log_folders(config)
    if not folders:
        return "not restored: its tables were in memory only and must fill again before training continues"
    where = "" if folders[0].is_relative_to(config.run.folder) else f" in {', '.join(map(str, folders))}"
    if any(map(has_log, folders)):
        return f"its tables are restored from the log{where}; the learner reports the number of items below"
    return f"not restored: there is no log{where}, so its tables must fill again before training continues"
