"""`tidemill export RUN`: writes a run's trained policy as one folder to pass on."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.bundle.files import (
    CONFIG,
    Bundle,
    check_free,
    check_trusted,
    find_shown,
    name_beyond_sweep,
    named_code,
    present_name,
    read_policy_params,
    write_bundle,
)
from tidemill.bundle.hub import open_repository, upload
from tidemill.bundle.onnx_report import NAME, OnnxReport, try_onnx
from tidemill.config.evaluation import is_fresh, noop_max_of
from tidemill.config.load import read_document, read_settings
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.make import spec_of
from tidemill.errors import ConfigError, TidemillError
from tidemill.installation import typed
from tidemill.params.version import VERDICT, Params
from tidemill.process import end_in_order
from tidemill.scores import Score, read_scores
from tidemill.services.launcher.run.folder import check_is_run
from tidemill.settings.argument_parser import ArgumentParser
from tidemill.settings.overlay import to_document
from tidemill.temporary_folder import temporary_folder

_ABOUT = """Write a run's trained policy into one folder to pass on: parameters, settings, scores, curve, video and a
model card; or put them on the Hugging Face Hub. `tidemill evaluate FOLDER` tests it on another machine, and
tidemill.load_policy(FOLDER) acts with it."""

_CARD = """---
library_name: tidemill
tags: [reinforcement-learning, {algorithm}, {tag}]
{index}---

# {algorithm} on {env_id}

Version {version} of the run `{run}`, trained with Tidemill
for {env_steps:,} agent decisions and {learner_steps:,} updates{each} (seed {seed}).

{pictures}## Scores

{scores}

## Use

{use}
{code}
{onnx}

## Limits

Trained by one seed in the environment above with the settings of `config.yaml`, and tested nowhere else: other physics,
observations or time limits are outside of what it has seen. One seed says little of an algorithm.

## Trained with

`tidemill train --config config.yaml{sources}` with the settings of this folder{tables}, and

{versions}
"""


_USE = """```python
import tidemill

policy = tidemill.load_policy("{source}"{trusted}){here}
env = policy.make_env()
observation, reward, is_first = env.reset(seed=0), None, None
for _ in range(1000):
    step = env.step(policy.act(observation, reward=reward, is_first=is_first{mask}))
    observation, reward, is_first = step.observation, step.reward, step.is_first
```

`tidemill evaluate {source}{trust}` plays fresh episodes by the run's protocol and writes every return."""

_USE_IN_PROGRAM = """```python
import tidemill

policy = tidemill.load_policy("{source}"{trusted}){here}
observation, reward, is_over = game.reset(), None, False  # `game` is your program
while not is_over:
    action = policy.act(observation, reward=reward{mask})
    observation, reward, is_over = game.push(action)
```

Call `policy.reset()` before each further episode. `env.spaces` in `config.yaml` says what the program observes and
does. Continuous actions lie in [-1, 1]."""
"""Instead, where only simulators can play."""

_INDEX = """model-index:
- name: {run}
  results:
  - task: {{type: reinforcement-learning, name: reinforcement-learning}}
    dataset: {{type: {env}, name: {env}}}
    metrics:
    - {{type: mean_reward, name: mean_reward, value: "{score.mean:.2f} +/- {score.std:.2f}"}}
"""
"""The score in the form in which the Hub lists it."""

_PICTURES = {"learning_curve.png": "Learning curve", "contact_sheet.png": "Pictures of one episode"}
"""What the card shows, if it is there."""


def export(argv: Sequence[str]) -> int:
    """Write a bundle; return the exit code."""
    parser = ArgumentParser(prog="tidemill export", description=_ABOUT)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, for example runs/quickstart")
    parser.add_argument(
        "--out",
        type=os.path.expanduser,  # a text, for -
        metavar="FOLDER",
        help="folder to write (default: NAME-policy here); - for a tar archive on standard output",
    )
    parser.add_argument(
        "--tag", metavar="TAG", help="parameters: best, latest or a version's number (default: best, or else latest)"
    )
    parser.add_argument(
        "--to-hub",
        metavar="OWNER/NAME",
        help="also put it into this repository of the Hugging Face Hub, with the token of HF_TOKEN or `hf auth login`",
    )
    parser.add_argument("--private", action="store_true", help="with --to-hub, make a new repository private")
    arguments = parser.parse_args(list(argv))
    if arguments.private and not arguments.to_hub:
        raise ConfigError("--private is given without --to-hub; add --to-hub OWNER/NAME")
    end_in_order()
    if arguments.to_hub:
        return _to_hub(arguments)
    name = f"{name_beyond_sweep(arguments.run, arguments.run.resolve().name)}-policy"
    if arguments.out == "-":
        _write_archive(arguments.run, name, arguments.tag)
        return 0
    folder = Path(arguments.out or name)
    _export(arguments.run, folder, arguments.tag)
    print(f"{folder}:")
    for path in sorted(folder.iterdir()):
        print(f"  {path.name:20} {path.stat().st_size:>12,} bytes")
    print(f"\n{_use(arguments.run, str(folder))}{_trust(folder)}")
    return 0


def _to_hub(arguments: argparse.Namespace) -> int:
    """Put a bundle on the Hub, and in a folder if one is named."""
    name = arguments.to_hub
    if arguments.out == "-":
        raise ConfigError("--out - is given with --to-hub; give a folder, or leave it out")
    with temporary_folder("export") as made:
        folder = Path(arguments.out or Path(made) / "policy")
        address = _export(arguments.run, folder, arguments.tag, repository=name, private=arguments.private)
        upload(folder, name)
        trust = _trust(folder)
    print(f"{address}\n\n{_use(arguments.run, f'hf://{name}')}{trust}")
    return 0


def _use(run: Path, bundle: str) -> str:
    """Return a line that says what can be done with a run's bundle."""
    if (read_document(run / CONFIG).get("env") or {}).get("spaces"):  # nothing here can play it
        return f"Act with it in your program:  tidemill.load_policy({bundle!r})"
    return f"Test it anywhere:  {typed('evaluate', bundle)}"


def _write_archive(run: Path, name: str, tag: str | None) -> None:
    """Write the folder as a tar archive to standard output: out of a container, whose volumes a person does not see."""
    if sys.stdout.isatty():
        raise ConfigError(
            "--out - writes an archive to standard output, which is a terminal: add `| tar x` or `> policy.tar`"
        )
    with temporary_folder("export") as made:
        with contextlib.redirect_stdout(sys.stderr):
            _export(run, Path(made) / name, tag)
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            archive.add(Path(made) / name, arcname=name, filter=_without_owner)
        sys.stdout.buffer.flush()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member without the container's user, and readable by whoever unpacks it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o755 if member.isdir() else 0o644
    return member


def _trust(folder: Path) -> str:
    """Return the option that a bundle needs whose settings name code, such as an environment of one's own."""
    try:
        check_trusted(folder, trusted=False)
    except ConfigError:
        return " --trust"
    return ""


def _export(run: Path, folder: Path, tag: str | None, repository: str = "", *, private: bool = False) -> str:
    """Write a bundle; return the address of the repository that is made for it, if one is named.

    Mistakes are found before the repository is made, and both before the seconds that ONNX takes.
    """
    check_is_run(run)
    config = read_settings(EvaluatorConfig, run / CONFIG)
    config = replace(config, run=replace(config.run, name=present_name(run, config.run.name)))
    asked = read_policy_params(run, int(tag) if tag and tag.isdigit() else tag)
    params = asked if tag == str(asked.number) else _as_measured(run, asked)
    result = formats.read_json(run / "result.json", formats.RESULT)
    bundle = Bundle(params, spec_of(config.env), result, _trained_with(run / CONFIG))
    score, confirmation = (
        {row.params_version: row for row in read_scores(run / file)}.get(params.number)
        for file in ("scores.csv", "confirmations.csv")
    )
    numbers = {params.number, asked.number}
    reports = sorted(file for number in numbers for file in run.glob(f"evaluations/*version-{number}-*.json"))
    tests = [formats.read_json(file, formats.EVALUATION) for file in reports]
    check_free(folder)
    address = open_repository(repository, private=private) if repository else ""
    source = f"hf://{repository}" if repository else "."
    with temporary_folder("onnx") as made:
        file = Path(made) / NAME
        onnx = try_onnx(run, params.number, file)
        sources = list((read_document(run / CONFIG).get("learner") or {}).get("sources") or {})
        shown = list(find_shown(run, bundle))
        card = model_card(bundle, config, score, tests, shown, onnx, source, sources, confirmation=confirmation)
        write_bundle(bundle, run, folder, card, {} if onnx.reason else {NAME: file})
    if onnx.reason:
        print(f"No {NAME}: {onnx.reason}\n")
    return address


def _as_measured(run: Path, params: Params) -> Params:
    """Return the version that ended the run if the learner has published it again as this one: it has the scores."""
    with contextlib.suppress(TidemillError):  # the run has not ended, or has lost the version
        if (verdict := read_policy_params(run, VERDICT)).blob == params.blob:
            return verdict
    return params


def _trained_with(config: Path) -> dict[str, str]:
    """Return the versions that a run's config.yaml names in its first lines."""
    header = re.findall(r"^# (\S+) (.+)$", config.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: version for name, version in header if version != "not installed"}


def model_card(  # noqa: PLR0913 - each is a part of the card
    bundle: Bundle,
    config: EvaluatorConfig,
    score: Score | None,
    tests: Sequence[Mapping[str, Any]],
    shown: Sequence[str],
    onnx: OnnxReport,
    source: str = ".",
    sources: Sequence[str] = (),
    *,
    confirmation: Score | None = None,
) -> str:
    """Return the README.md of a bundle.

    Args:
        bundle: What is described.
        config: Settings it was trained with.
        score: Evaluation of the version in the run; None without one.
        tests: Reports that `tidemill evaluate` has written on the version.
        shown: Names of the files that a person looks at.
        onnx: Whether there is policy.onnx.
        source: What the policy is loaded by: `hf://OWNER/NAME`, or the folder itself.
        sources: Names of `learner.sources` it was trained with, whose addresses are not passed on.
        confirmation: Fresh episodes that the run has played with the version; None without any.
    """
    trained = bundle.params.version.metadata
    named = named_code(to_document(config))
    has_env = not config.env.spaces
    legal = "env.action_mask" if has_env else "game.legal"
    return _CARD.format(
        algorithm=trained.algorithm,
        env_id=config.env.id,
        tag=re.sub(r"[^A-Za-z0-9._-]+", "-", config.env.id),
        index=""
        if score is None
        else _INDEX.format(run=json.dumps(config.run.name), env=json.dumps(config.env.id), score=confirmation or score),
        version=bundle.params.number,
        run=config.run.name,
        seed=config.run.seed,
        env_steps=trained.env_steps,
        learner_steps=trained.learner_steps,
        each=_gradient_steps(config.agent),
        pictures="".join(f"![{words}]({file})\n\n" for file, words in _PICTURES.items() if file in shown),
        scores="\n".join(_scores(config, score, confirmation, tests)),
        use=(_USE if has_env else _USE_IN_PROGRAM).format(
            source=source,
            here="  # this folder" if source == "." else "",
            mask=f", action_mask={legal}" if bundle.env_spec.masks_actions else "",
            trusted=", trusted=True" if named else "",
            trust=" --trust" if named else "",
        ),
        code=_describe_code(named),
        onnx=_describe_onnx(
            onnx,
            is_discrete=bool(bundle.env_spec.action_options),
            frame_stack=bundle.env_spec.frame_stack,
            has_env=has_env,
            is_joint=config.env.joint_actions,
        ),
        sources="".join(f" --learner.sources.{name}.replay ADDRESS" for name in sources),
        tables=", where ADDRESS is of a replay service with the table of the source" if sources else "",
        versions="\n".join(f"- {name} {number}" for name, number in bundle.versions.items()),
    )


def _gradient_steps(agent: Any) -> str:  # noqa: ANN401 - the settings of any algorithm
    """Return the number of gradient steps of an update, for an algorithm that passes over a batch several times."""
    count = getattr(agent, "epochs", 1) * getattr(agent, "minibatches", 1)
    most = "at most " if getattr(agent, "target_kl", 0) else ""
    return f", each of {most}{count} gradient steps" if count > 1 else ""


def _describe_code(named: Mapping[str, str]) -> str:
    """Return the paragraph on modules that the settings name, which are not part of the folder; nothing without any."""
    if not named:
        return ""
    settings = ", ".join(f"`{setting}: {value}`" for setting, value in named.items())
    modules = " and ".join(sorted({f"`{value.partition(':')[0].partition('.')[0]}`" for value in named.values()}))
    return (
        f"\nThe settings name code ({settings}), which is not in this folder: {modules} must be installed or lie in "
        "the working directory.\nIt is imported only if you say that you trust its origin.\n"
    )


def _describe_onnx(
    onnx: OnnxReport, *, is_discrete: bool, frame_stack: int, has_env: bool = True, is_joint: bool = False
) -> str:
    """Return the paragraph on policy.onnx, or on why there is none."""
    if onnx.reason:
        return f"There is no `{NAME}`: {onnx.reason}."
    agreed = "chose the actions that torch chose"
    if not is_discrete:
        agreed = f"and torch differed by at most {onnx.difference:.1e}"
        numbers = "actions lie in [-1, 1]" + ", which `make_env` scales to the environment's bounds" * has_env
    elif is_joint:
        numbers = (
            "an action is the number of a combination of choices (`env.joint_actions`), from which "
            "`numpy.unravel_index(action, sizes)` computes each choice, from 0"
        )
    else:
        numbers = "actions count from 0" + ", whatever the `start` of the environment's action space" * has_env
    stacked = (
        f" Stack the last {frame_stack} observations, oldest first; at the start of an episode repeat the first one."
        if frame_stack > 1
        else ""
    )
    source = "`make_env`" if has_env else "the program"
    given = f"a stack of what {source} gives" if stacked else f"as {source} gives it"
    return (
        f"`{NAME}` is the policy for programs without torch: `observation` {onnx.input}, {given}, to "
        f"`action` {onnx.output}; {numbers}.{stacked} On {onnx.observations} random observations onnxruntime {agreed}."
    )


def _scores(
    config: EvaluatorConfig, score: Score | None, confirmation: Score | None, tests: Sequence[Mapping[str, Any]]
) -> list[str]:
    lines = []
    if score is not None:
        lines.append(
            f"- {score.mean:.2f} ± {score.std:.2f} over {score.episodes} episodes when the run evaluated it, which is "
            "optimistic for a version that was picked by this score"
        )
    if confirmation is not None:
        outcome, target = "", config.run.target_return
        if target is not None:
            verb = "confirmed" if confirmation.mean >= target else "did not confirm"
            outcome = f" that {verb} it at the target of {target:g}"
        lines.append(
            f"- {confirmation.mean:.2f} ± {confirmation.std:.2f} over {confirmation.episodes} fresh episodes{outcome}"
        )
    lines += [_tested(test, config) for test in tests]
    starts = f", up to {noop_max_of(config)} no-op starts" if config.env.is_atari else ""
    protocol = f"Raw returns of full episodes, each with its own seed{starts}; mean ± standard deviation over episodes."
    return [*(lines or ["This version has not been evaluated."]), "", protocol]


def _tested(test: Mapping[str, Any], config: EvaluatorConfig) -> str:
    """Return the line of a report by `tidemill evaluate`, with what it measured otherwise than the run does."""
    failed, first = test.get("failed_episodes", 0), test.get("first_seed", test["seeds"][0])
    fresh = "fresh " if is_fresh(config, range(first, first + test["episodes"] + failed)) else ""
    policy = (
        f"epsilon policy (epsilon {test['epsilon']:g})" if test["policy"] == "epsilon" else f"{test['policy']} policy"
    )
    noops, sticky, steps = (test.get(name) for name in ("noop_max", "sticky_actions", "max_steps"))
    others = {
        f"{failed} more failed": failed,
        f"up to {noops} no-op starts instead": noops not in (None, noop_max_of(config)),
        f"sticky actions {sticky}": sticky not in (None, config.env.sticky_actions),
        f"at most {steps or 'any number of'} decisions each": steps not in (None, config.env.max_evaluation_steps),
    }
    return ", ".join(
        [
            f"- {test['mean']:.2f} ± {test['std']:.2f} over {test['episodes']} {fresh}episodes",
            policy,
            f"seeds from {first}",
            *(words for words, is_so in others.items() if is_so),
        ]
    )
