"""Settings that a run in lock-step may never change, because its parameters depend on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.atomic_files import write_atomically
from tidemill.errors import ConfigError, FatalError
from tidemill.settings.overlay import to_document

_FIXED: Mapping[str, tuple[str, ...]] = {
    "run": ("deterministic", "seed", "round_steps"),
    "env": (),
    "agent": (),
    "table": (),
    "learner": ("updates_per_env_step", "batches_per_sample", "mirror_mib", "device", "threads", "publish_half"),
    "actor": ("count", "index", "threads", "precision"),
    "launcher": ("actors",),
}
"""Names by section; none stands for all of it."""

FREE = tuple(
    f"env.{name}"
    for name in (
        "step_timeout_s",
        "reset_timeout_s",
        "on_failure",
        "max_restarts",
        "restart_backoff_s",
        "max_memory_mib",
        "threads",
    )
)
"""Settings of these sections that nothing depends on."""

_NAMED = 3  # differences in a message


def fixed_settings(config: object) -> dict[str, Any]:
    """Return the values of the settings that stay, by dotted name; of the sections that a process reads."""
    document = to_document(config)
    return {
        f"{section}.{name}": value
        for section, names in _FIXED.items()
        for name, value in document.get(section, {}).items()
        if (not names or name in names) and f"{section}.{name}" not in FREE
    }


def check_fixed(stored: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Compare settings with those that a run was started with, if it was or is in lock-step.

    Args:
        stored: What `fixed_settings` returned at the start.
        config: The settings now. What only one of them knows, as after a change of version, is not compared.

    Raises:
        ConfigError: Some differ; the message names them, both values and what to do.
    """
    now = fixed_settings(config)
    if not (stored.get("run.deterministic") or now.get("run.deterministic")):
        return
    changed = [name for name, value in stored.items() if name in now and now[name] != value]
    if changed:
        values = [f"{name} is {_text(now[name])}, but was {_text(stored[name])}" for name in changed[:_NAMED]]
        more = f", and {len(changed) - _NAMED} more differ" if len(changed) > _NAMED else ""
        raise ConfigError(
            f"{'; '.join(values)}{more} when this run was started: with run.deterministic its parameters depend on it; "
            "set it back to continue, or start from scratch under another run.name"
        )


def keep_fixed(config: Any, file: Path) -> None:  # noqa: ANN401 - the dataclass of any process
    """Write a process's settings into a file that is not there yet, or compare them with those in it.

    Args:
        config: The settings of a process in lock-step.
        file: Of this process of the run; its folder is made.

    Raises:
        ConfigError: They are not what the run was started with.
        FatalError: The file cannot be read.
    """
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(fixed_settings(config), indent=1))
        return
    except (OSError, ValueError) as error:
        raise FatalError(f"cannot read the settings this run was started with, {file}: {error}") from error
    check_fixed(stored, config)


def _text(value: object) -> str:
    return json.dumps(value)
