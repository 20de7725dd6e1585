"""Check of a user's own network: its updates on a GPU are rehearsed, without a GPU."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.services.tools.doctor.finding import Finding

_TIMEOUT_S = 300.0
_SHAPE = re.compile(r"(\d+(?:x\d+)*)(?::(uint8|float32))?")
_ADVICE = {
    "waits": "avoid item(), float(), bool(), nonzero() and boolean-mask indexing: they make the GPU idle, "
    "and agent.compile: cuda-graphs fails",
    "host number": "make the tensor on `observation.device`, or keep it by `register_buffer`",
    "refused": "make every tensor on `observation.device`, or keep it by `register_buffer`, so that it moves along",
    "unregistered generator": "draw no noise in a network: a CUDA graph would repeat it",
    "error": "the network must also run on a CPU; set its input shape with `--observations`",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a rehearsal."""
    parser.add_argument(
        "--network", metavar="MODULE:NAME", help="check only this network: rehearse every algorithm's updates with it"
    )
    parser.add_argument(
        "--observations",
        metavar="SHAPE",
        default="8",
        help="shape of one observation it takes, such as 8 or 84x84x3, and the type if it is neither float32 for "
        "vectors nor uint8 for images: 84x84:float32 (default: 8)",
    )
    parser.add_argument("--frame-stack", type=int, default=1, help="observations in a stack (default: 1)")
    parser.add_argument(
        "--network-settings", metavar="NAME=VALUE", nargs="*", default=[], help="its agent.network_settings"
    )


def question(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the request for `tidemill.rehearsal.network`; exit if an option is invalid."""
    shape = _SHAPE.fullmatch(arguments.observations)
    if shape is None:
        parser.error(f"--observations is {arguments.observations!r}, allowed: 8, 84x84, 84x84x3:float32 and the like")
    if arguments.frame_stack < 1:
        parser.error(f"--frame-stack is {arguments.frame_stack}, must be at least 1")
    sides = [int(side) for side in shape[1].split("x")]
    settings = {}
    for setting in arguments.network_settings:
        name, equals, value = setting.partition("=")
        if not equals:
            parser.error(f"--network-settings has {setting!r}, allowed: NAME=VALUE")
        settings[name] = _value(value)
    dtype = shape[2] or ("float32" if len(sides) == 1 else "uint8")
    return {
        "network": arguments.network,
        "shape": sides,
        "dtype": dtype,
        "frame_stack": arguments.frame_stack,
        "settings": settings,
    }


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def rehearsed(asked: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of a separate process on the updates of every algorithm with a network.

    Args:
        asked: As `question` returns it.
    """
    command = [sys.executable, "-P", "-W", "ignore", "-m", "tidemill.rehearsal.network"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [Finding("FAIL", f"{asked['network']} is not rehearsed within {_TIMEOUT_S:.0f} s")]
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    found = findings(asked["network"], answers)
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"the process ended with code {ended.returncode}"])[-1]
        found.append(Finding("FAIL", f"the rehearsal of {asked['network']} ended early: {reason}"))
    return found


def findings(network: str, answers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return findings for the lines of `tidemill.rehearsal.network`: one for each fault, and one for all others."""
    by_fault: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for answer in answers:
        for kind, text in answer["faults"]:
            by_fault[kind, text].append(answer["algorithm"])
    clean = [answer["algorithm"] for answer in answers if not answer["faults"]]
    found = [
        Finding("FAIL", f"{text}: in updates of {', '.join(names)}", _ADVICE[kind])
        for (kind, text), names in by_fault.items()
    ]
    if clean:
        text = f"updates of {', '.join(clean)} with {network} run on a GPU, eager and as CUDA graphs where possible"
        found.insert(0, Finding("ok", text))
    return found
