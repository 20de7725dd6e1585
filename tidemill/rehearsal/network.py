"""A user's own network on a GPU, rehearsed without one: a separate program, for `tidemill doctor --network`.

`python -m tidemill.rehearsal.network` reads a `Question` as JSON from standard input and prints a line of JSON for each
algorithm: `algorithm`, and in `faults` what its updates would do that a GPU does not take.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.errors import ConfigError
from tidemill.rehearsal import library
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    from tidemill.rehearsal.pretended_cuda import PretendedCuda
    from tidemill.rl.settings.registry import AgentConfig

_ITEMS = 4
_ACTIONS: tuple[dict[str, Any], ...] = ({"num_actions": 4}, {"action_shape": (2,)})
_SIZES = {"batch_size": _ITEMS, "unroll": 4, "burn_in": 2, "period": 2, "epochs": 1, "minibatches": 1}
"""Nothing is computed, so other sizes would show the same."""


@dataclass(frozen=True)
class Question:
    """Description of the network to rehearse.

    Attributes:
        network: Its `module:name`.
        shape: Of one observation.
        dtype: Of observations.
        frame_stack: How many of them the network sees.
        settings: `agent.network_settings`.
    """

    network: str
    shape: tuple[int, ...]
    dtype: str
    frame_stack: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


def main() -> int:
    """Answer the question; an error that no algorithm gets past is one line of standard error."""
    asked = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr  # what the user's module prints is not an answer
    question = Question(**{**asked, "shape": tuple(asked["shape"])})
    library.load()
    warnings.simplefilter("ignore")  # torch warns of a CPU build that is asked about CUDA
    from tidemill.rehearsal.pretended_cuda import PretendedCuda

    cuda = PretendedCuda(1)
    for config, env_spec in _uses(question):
        answer = {"algorithm": config.algorithm, "faults": faults(cuda, config, env_spec)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


def faults(cuda: PretendedCuda, config: AgentConfig, env_spec: EnvSpec) -> list[tuple[str, str]]:
    """Return kind and text of each fault of an algorithm's updates, eager and recorded as CUDA graphs.

    Args:
        cuda: The pretended GPUs.
        config: The algorithm's settings.
        env_spec: Shapes of the environment.

    Returns:
        The kind is that of a `Note`, or `error` for what is raised before a GPU is asked for anything.
    """
    from tidemill.rehearsal.updates import recorded, rehearse_updates
    from tidemill.rl.agents.capture_trial import can_record

    found: list[tuple[str, str]] = []
    for way in [config, recorded(config)] if can_record(config) else [config]:
        try:
            seen = rehearse_updates(cuda, way, env_spec, items=_ITEMS)
        except Exception as error:  # of the user's module, while it is built
            return [("error", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")]
        refused = {(note.operation, note.where) for note in seen.notes if note.kind == "refused"}
        notes = [note for note in seen.notes if note.kind == "refused" or (note.operation, note.where) not in refused]
        found += [(note.kind, str(note)) for note in notes]
        if seen.error and not refused:
            found.append(("error", seen.error))
    return list(dict.fromkeys(found))


def _uses(question: Question) -> Iterator[tuple[AgentConfig, EnvSpec]]:
    from tidemill.rl.settings.registry import algorithms, config_class

    for algorithm in algorithms():
        kind: Any = config_class(algorithm)
        names = {each.name for each in dataclasses.fields(kind)}
        sizes = {name: value for name, value in _SIZES.items() if name in names}
        config = kind(network=question.network, network_settings=dict(question.settings), **sizes)
        for actions in _ACTIONS:
            env_spec = EnvSpec(question.shape, question.dtype, frame_stack=question.frame_stack, **actions)
            try:
                config.validate_env(env_spec)
            except ConfigError:
                continue
            yield config, env_spec
            break


if __name__ == "__main__":
    sys.exit(main())
