"""Makes one environment in a separate process before anything of a run is started.

The launcher imports neither gymnasium nor torch, and an environment may hang, or take its process down with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tidemill.config.load import from_document, read_document, write_document
from tidemill.config.sections import RunConfig
from tidemill.config.user_code import user_object
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.process import run
from tidemill.programs.child import PARENT_VARIABLE
from tidemill.rl.agents.registry import AgentConfig

_SETTINGS, _REFUSAL, _NOTICE = "settings.yaml", "refusal", "notice"
_SHOWN_LINES = 8
_ENDLESS = (
    "{} has no limit of steps. If its episodes may go on for ever, so does an evaluation: "
    "--env.max-evaluation-steps cuts it, --env.max-episode-steps training"
)


def check_environment(config: RunConfig) -> str:
    """Make one environment of the run and close it again; takes about a second.

    Returns:
        What its user should know, on one line; empty if there is nothing.

    Raises:
        ConfigError: There is no such environment, the algorithm does not fit it, or making it failed or took longer
            than `launcher.start_timeout_s`.
    """
    env_id, timeout_s = config.env.id, config.launcher.start_timeout_s
    with tempfile.TemporaryDirectory(prefix="tidemill-env-check-") as folder:
        write_document(config, Path(folder) / _SETTINGS)
        try:
            ended = subprocess.run(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "tidemill.programs.child",
                    "tidemill.services.launcher.run.env_check",
                    folder,
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid()), "SDL_VIDEODRIVER": "dummy"},
                timeout=timeout_s,
                check=False,
                start_new_session=True,  # a Ctrl-C on the terminal ends it through the launcher
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"making one environment of env.id {env_id!r} took over {timeout_s:g} s (launcher.start_timeout_s)"
            ) from error
        refusal = Path(folder) / _REFUSAL
        if refusal.exists():
            raise ConfigError(refusal.read_text(encoding="utf-8"))
        notice = Path(folder) / _NOTICE
        said = notice.read_text(encoding="utf-8") if notice.exists() else ""
    if ended.returncode:
        last_lines = ended.stderr.decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        raise ConfigError("\n".join([f"making one environment of env.id {env_id!r} failed:", *last_lines]))
    return said


def _try_here(folder: Path) -> int:
    from tidemill.envs.goals import goal_rewards
    from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
    from tidemill.envs.make import make_env
    from tidemill.replay.table_config import check_signature
    from tidemill.rl.agents.registry import stored_columns

    config = from_document(RunConfig, read_document(folder / _SETTINGS))
    try:
        _check_callbacks(config)
        with closing(make_env(config.env, 1, training=False)) as env:
            spec, may_go_on = env.spec, isinstance(env, GymnasiumVectorEnv) and not env.has_step_limit
        config.agent.validate_env(spec)
        check_signature(stored_columns(config.agent, spec))
        if config.table.hindsight:
            goal_rewards(config.env)
        if _names_own_code(config.agent):
            from tidemill.rl.agents.build import build_agent  # torch takes seconds to import

            build_agent(config.agent, spec)
        if may_go_on and not config.env.max_evaluation_steps:
            (folder / _NOTICE).write_text(_ENDLESS.format(config.env.id), encoding="utf-8")
    except (ConfigError, InvalidArgument) as error:
        (folder / _REFUSAL).write_text(str(error), encoding="utf-8")
    return 0


def _check_callbacks(config: RunConfig) -> None:
    """Raise ConfigError if a callback is not there; they are made by the services that call them."""
    for service in ("learner", "evaluator"):
        for name in getattr(config, service).callbacks:
            user_object(f"{service}.callbacks", name)


def _names_own_code(agent: AgentConfig) -> bool:
    """Return whether a setting of the algorithm names a module of the user's."""
    return any(isinstance(value, str) and (":" in value or "." in value) for value in vars(agent).values())


if __name__ == "__main__":
    sys.exit(run("env_check", lambda: _try_here(Path(sys.argv[1]))))
