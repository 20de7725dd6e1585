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
from tidemill.rl.agents.registry import algorithms, config_class
from tidemill.rpc.settings import ServerSettings

PAGE = FOLDER / "configuration.md"

_INTRODUCTION = """# Configuration reference

<!-- Written by `python -m scripts.docs.configuration` from the settings' docstrings: change those, then run it. -->

Every setting of a run, from the dataclasses that read it. The setting `learner.publish_every` is
`--learner.publish-every 50` on the command line and

```yaml
learner:
  publish_every: 50
```

in a file that `--config` names. The command line wins over the file, the file over the defaults below. A switch is
turned off by `--evaluator.no-video`. An unknown key is an error that names the nearest known one. Each process reads
the sections that it needs: `tidemill learner --help` lists those of the learner, and `tidemill train` takes all;
`tidemill train --help agent` shows one section on a screen, and `tidemill train --help agent.noise` all of those
that begin so.

Where there is no command line, as in containers, the variables of `.env.example` hold options of each service, and
`TIDEMILL_TLS_CA`, `TIDEMILL_TOKEN_FILE` and their like say how clients reach secured servers
([Operations](../operations.md#security)).
"""
_SERVER = """## SERVICE.server

Of `replay.server`, `paramserver.server`, `learner.server`, `actor.server` and `evaluator.server`. Each service's own
section gives the defaults that differ.
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
        return " or ".join(f"`{value}`" for value in arguments)
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
