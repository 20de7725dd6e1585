"""A trained policy as ONNX, for programs without torch: written, and checked against the policy by onnxruntime.

    python -m tidemill.bundle.onnx_file RUN VERSION FILE

It is a separate process, because torch is heavy and its exporter talks; its last line is an `OnnxReport` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemill.bundle.onnx_report import OnnxReport
from tidemill.rl.policy_io import PolicyInput

if TYPE_CHECKING:
    from tidemill.types import EnvSpec

_OBSERVATIONS = 64
_TOLERANCE = 1e-4
"""Most that an action may differ by; actions lie in [-1, 1]. Choices of discrete actions must be equal."""


def write_onnx(policy: Any, env_spec: EnvSpec, file: Path) -> OnnxReport:  # noqa: ANN401 - any algorithm's policy
    """Write what a policy does in evaluation as ONNX, and compare the file with the policy.

    Args:
        policy: With the parameters to write.
        env_spec: Shapes of its environment.
        file: What is written; removed again if it acts differently.
    """
    import torch

    if getattr(policy, "recurrent_state_size", 0):
        return OnnxReport("the policy is recurrent: its next action also depends on what it remembers")
    if env_spec.masks_actions:
        return OnnxReport("the environment says which actions are legal, and the file would have no input for that")
    if env_spec.observation_parts:
        return OnnxReport("the environment's observations have several parts, and the file would have one input")
    if not hasattr(policy, "evaluation_network"):
        return OnnxReport(f"{type(policy).__name__} has no `evaluation_network`")
    network = policy.evaluation_network().eval()
    seen = _random_observations(env_spec)
    try:
        torch.onnx.export(
            network,
            (torch.from_numpy(seen[:2]),),
            file,
            input_names=["observation"],
            output_names=["action"],
            dynamic_shapes={"observation": {0: torch.export.Dim("N")}},
            external_data=False,
            verbose=False,
        )
    except Exception as error:  # the exporter raises whatever a network of a user's own provokes
        file.unlink(missing_ok=True)
        return OnnxReport(f"torch cannot export the network: {str(error).strip().splitlines()[0]}")
    return _compared(file, seen, policy.act(_first_of_episodes(seen, env_spec), evaluation=True).action)


def _random_observations(env_spec: EnvSpec) -> NDArray[Any]:
    """Return observations [64, ...] as a policy sees them: bytes over their range, or standard normal numbers."""
    stack = (env_spec.frame_stack,) if env_spec.frame_stack > 1 else ()
    shape = (_OBSERVATIONS, *stack, *env_spec.observation_shape)
    rng = np.random.default_rng(0)
    if env_spec.observation_dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.normal(size=shape).astype(env_spec.observation_dtype)


def _first_of_episodes(seen: NDArray[Any], env_spec: EnvSpec) -> PolicyInput:
    """Return the input of a policy that remembers nothing."""
    zeros = np.zeros((len(seen), 0), np.float32)
    action = np.zeros((len(seen), *env_spec.action_shape), env_spec.action_dtype)
    return PolicyInput(seen, np.ones(len(seen), np.bool_), action, zeros.sum(1), zeros)


def _compared(file: Path, seen: NDArray[Any], expected: NDArray[Any]) -> OnnxReport:
    """Return how onnxruntime's actions differ from `expected`; the file is removed if they differ too much."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found = session.run(["action"], {"observation": seen})[0]
    is_alike = found.shape == expected.shape and found.dtype == expected.dtype
    difference = float(np.abs(found.astype(np.float64) - expected).max()) if is_alike else float("inf")
    if not difference <= (_TOLERANCE if expected.dtype.kind == "f" else 0.0):  # also for NaN
        file.unlink()
        return OnnxReport(f"onnxruntime and the policy differ by {difference:g} in an action")
    described = [f"{array.dtype} [{', '.join(['N', *map(str, array.shape[1:])])}]" for array in (seen, expected)]
    return OnnxReport("", len(seen), difference, *described)


def main() -> int:
    """Write the file of a run's version and print the report; return 0."""
    from tidemill.bundle.policy import load_policy

    run, version, file = sys.argv[1:]
    trained = load_policy(run, int(version))
    report = write_onnx(trained._policy, trained.env_spec, Path(file))
    print(json.dumps(dataclasses.asdict(report)))  # noqa: T201 - read by `try_onnx`
    return 0


if __name__ == "__main__":
    sys.exit(main())
