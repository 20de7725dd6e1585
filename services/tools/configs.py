"""`tidemill configs`: the presets that `--config NAME` takes."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.config.load import load_config
from tidemill.config.presets import find_config, preset_names
from tidemill.settings.argument_parser import ArgumentParser

_ABOUT = """List the presets, each for `tidemill train --config NAME`. With NAME, print one to copy and change; its
comments name the sources of its settings: tidemill configs quickstart > mine.yaml"""


def configs(argv: Sequence[str]) -> int:
    """List all, or print one; return the exit code."""
    parser = ArgumentParser(prog="tidemill configs", description=_ABOUT)
    parser.add_argument("name", nargs="?", metavar="NAME", help="preset to print")
    name = parser.parse_args(list(argv)).name
    if name is not None:
        print(find_config(name).read_text(encoding="utf-8"), end="")
        return 0
    rows = [("NAME", "ALGORITHM", "ENVIRONMENT", "TARGET"), *map(_row, preset_names())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(name: str) -> tuple[str, str, str, str]:
    config = load_config(find_config(name))
    target = config.run.target_return
    return name, config.agent.algorithm, config.env.id, "" if target is None else f"{target:g}"
