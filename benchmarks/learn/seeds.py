"""Known facts about a result's seeds, and the seeds that reports are made on: chosen before, seen by no trial."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learn.ran import read_json
from tidemill.config.load import read_document
from tidemill.errors import ConfigError

DECLARED = Path(__file__).with_name("declared_seeds.yaml")
RESERVED = range(1_000, 2_000)
"""Seeds of reports: nothing else is run on them."""


@dataclass(frozen=True)
class Declared:
    """A row of the table that is reported on seeds that were named before any of them was run."""

    name: str
    config: str
    """File of the config."""
    seeds: tuple[int, ...]
    options: tuple[str, ...]
    """Further words of the command line."""


def read_declared(names: Collection[str] = (), file: Path = DECLARED) -> list[Declared]:
    """Return the declared rows of these names, all of them without any, in the order of the file.

    Raises:
        ConfigError: A name is not declared, or the file says something that cannot be.
    """
    rows = [_declared(name, entry) for name, entry in read_document(file).items()]
    if unknown := set(names) - {row.name for row in rows}:
        known = ", ".join(row.name for row in rows)
        raise ConfigError(f"{file} declares no seeds for {', '.join(sorted(unknown))}; declared: {known}")
    return [row for row in rows if not names or row.name in names]


def is_reported(row: Declared, results: Path, config_text: str) -> bool:
    """True if the committed result of a row is already its report.

    Args:
        row: What is declared.
        results: Folder of the result; there need be none.
        config_text: The config that would be run, as YAML.

    Raises:
        ConfigError: A report was made with other seeds or another config: these seeds have been seen since.
    """
    document = read_json(results / "result.json")
    if not document.get("declared_seeds"):
        return False
    was = sorted([*document["seeds"], *document["unfinished_seeds"]])
    if yaml.safe_load((results / "config.yaml").read_text(encoding="utf-8")) != yaml.safe_load(config_text):
        if set(was) & set(row.seeds):
            raise ConfigError(
                f"{results} reports other settings on seeds of {sorted(row.seeds)}: they have been seen; declare others"
            )
        return False
    if was != sorted(row.seeds):
        raise ConfigError(
            f"{results} is a report on the seeds {was}, whose number was fixed before; {sorted(row.seeds)} came after"
        )
    return True


def check_free(seeds: Collection[int]) -> None:
    """Refuse seeds of reports for anything else.

    Raises:
        ConfigError: One of them is reserved.
    """
    if taken := sorted(set(seeds) & set(RESERVED)):
        raise ConfigError(
            f"the seeds {taken} are kept for reports, as all from {RESERVED[0]} to {RESERVED[-1]}: see --report"
        )


def check_no_report(results: Path) -> None:
    """Refuse to write over a report, or to add to it.

    Args:
        results: Folder of the result that would be written; there need be none.

    Raises:
        ConfigError: It is a report on declared seeds.
    """
    if read_json(results / "result.json").get("declared_seeds"):
        raise ConfigError(f"{results} is a report on declared seeds; give this result another --name")


def describe_seeds(document: Mapping[str, Any], root: Path) -> str:
    """Describe in words if a trial had seen a result's seeds, and if their number was fixed before.

    Args:
        document: The result.
        root: Folder of all results, whose seeds.yaml lists those that were made before seeds were declared.
    """
    if document["declared_seeds"]:
        return "unseen, fixed before"
    file = root / "seeds.yaml"
    known = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}).get(document["name"]) or {}
    seen = "seen" if known.get("seen", True) else "unseen"
    return f"{seen}, {number}" if (number := known.get("number")) else seen


def _declared(name: str, entry: Any) -> Declared:  # noqa: ANN401 - whatever the file says
    if not isinstance(entry, dict) or entry.keys() - {"options"} != {"config", "seeds"}:
        raise ConfigError(f"declared seeds of {name} must have config and seeds, and may have options, got {entry!r}")
    seeds = tuple(entry["seeds"])
    if not seeds or len(set(seeds)) != len(seeds) or not set(seeds) <= set(RESERVED):
        raise ConfigError(
            f"declared seeds of {name} must all differ and be {RESERVED[0]} to {RESERVED[-1]}, got {seeds}"
        )
    return Declared(name, str(entry["config"]), seeds, tuple(map(str, entry.get("options", ()))))
