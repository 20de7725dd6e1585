"""Write docs/reference/configuration.md from the dataclasses of settings and the docstrings of their fields.

    python -m scripts.docs.configuration [--check]

With `--check` nothing is written: it fails when the page is out of date.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.docs.generated import FOLDER, write_or_check
from tidemill.config.documented import settings, summary
from tidemill.config.sections import RunConfig
from tidemill.rl.settings.registry import algorithms, config_class
from tidemill.rpc.settings import ServerSettings

PAGE = FOLDER / "configuration.md"

_INTRODUCTION = """# Configuration reference

<!-- Written by `python -m scripts.docs.configuration` from the settings' docstrings: change those, then run it. -->

Find a setting and set it on the command line:

```bash
tidemill train --config cartpole_dqn --learner.publish-every 50
```

or in a file that `--config` names:

```yaml
learner:
  publish_every: 50
```

The command line overrides the file, and the file overrides the defaults below. A switch is turned off by a `no-` before
its name: `--evaluator.no-video`. An unknown key is an error that names the nearest known one.

| Command | Shows |
|---|---|
| `tidemill train --help` | all sections |
| `tidemill train --help agent` | one section |
| `tidemill train --help agent.noise` | the full text of a setting, or of all settings with that prefix |
| `tidemill learner --help` | the sections that one service reads |

In containers the variables of `.env.example` hold the options of each service. `TIDEMILL_TLS_CA`, `TIDEMILL_TOKEN_FILE`
and other variables say how clients reach secured servers ([Operations](../operations.md#security)).
"""
_SERVER = """## SERVICE.server

The settings of `replay.server`, `paramserver.server`, `inference.server`, `learner.server`, `actor.server` and
`evaluator.server`. The section of each service has the defaults that differ.
"""
_NONE = "none"


def page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    run = RunConfig()
    for section in dataclasses.fields(run):
        default = getattr(run, section.name)
        parts.append("".join(_agents() if section.name == "agent" else _section(section.name, default)))
    parts.append(_SERVER + "\n" + "".join(_table("SERVICE.server", ServerSettings())))
    return "\n".join(parts)


def _agents() -> Iterator[str]:
    yield "## agent\n\nThe algorithm, chosen by `agent.algorithm`, decides which other settings there are; `sac` is "
    yield "the default.\nA package or class of your own brings its own ([Extending](../extending.md#an-algorithm)).\n"
    for name in algorithms():
        config = config_class(name)()
        yield f"\n### {name}\n\n{summary(type(config))}\n\n"
        yield from _table("agent", config)


def _section(name: str, default: Any) -> Iterator[str]:  # noqa: ANN401 - any settings dataclass
    yield f"## {name}\n\n{summary(type(default))}\n\n"
    yield from _table(name, default)


def _table(prefix: str, default: Any) -> Iterator[str]:  # noqa: ANN401 - any settings dataclass
    yield "| Setting | Default | Type | Meaning |\n|---|---|---|---|\n"
    for name, value, kind, text in settings(prefix, default):
        if isinstance(value, ServerSettings):
            yield f"| `{name}` | {_differing(value)} | [server](#serviceserver) | {text} |\n"
        else:
            yield f"| `{name}` | {_written(value)} | {_kind(kind)} | {text.replace('|', chr(92) + '|')} |\n"


def _differing(server: ServerSettings) -> str:
    """Return the values of a service's server that are not every server's."""
    changed = {name: value for name, value in vars(server).items() if value != getattr(ServerSettings(), name)}
    return ", ".join(f"{name} {_written(value)}" for name, value in changed.items()) or "as every server"


def _written(value: object) -> str:
    """Return a value as YAML has it."""
    if value is None:
        return _NONE
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"`{value:_}`"
    return f"`{json.dumps(dict(value) if isinstance(value, Mapping) else value)}`"


def _kind(kind: Any) -> str:  # noqa: ANN401 - what get_type_hints gives
    """Return a type in the words of a config file."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(map(_written, arguments))
    if type(None) in arguments:
        return f"{_kind(next(each for each in arguments if each is not type(None)))}, or {_NONE}"
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return "mapping"
    words = {bool: "switch", int: "integer", float: "number", str: "text"}
    return words[kind]


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), "python -m scripts.docs.configuration", sys.argv[1:]))
