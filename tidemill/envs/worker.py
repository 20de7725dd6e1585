"""`python -m tidemill.envs.worker FD`: the process of one environment, or of one batch, that an actor keeps apart.

It answers each message with one, and ends when the actor closes the socket or ends itself.
"""

from __future__ import annotations

import socket
import sys
import traceback
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tidemill import linux
from tidemill.arrays import Array
from tidemill.envs.worker_link import Link
from tidemill.parent import end_with_parent

if TYPE_CHECKING:
    from tidemill.envs.interface import VectorEnv
    from tidemill.envs.settings import EnvSettings

STEP_COLUMNS = ("observation", "reward", "terminated", "truncated", "is_first", "is_reset_step")


def main() -> None:
    """Serve the environment that the first message describes."""
    end_with_parent()
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    try:
        _serve(link)
    except (EOFError, BrokenPipeError):
        return


def _serve(link: Link) -> None:
    opening = link.receive(None)
    assert opening is not None
    sys.path[:] = opening[0]["path"]
    from tidemill.envs.make import make_env  # user modules may lie in the path that has just come

    link.send({"here": True})
    settings = read_settings(opening[0]["settings"])
    try:
        env = make_env(settings, opening[0]["num_envs"], training=opening[0]["training"], render=opening[0]["render"])
    except BaseException as error:
        link.send(_failure(error))
        return
    link.send({"spec": asdict(env.spec)})
    try:
        _play(link, env, weighs=bool(opening[0]["settings"]["max_memory_mib"]))
    finally:
        env.close()


def _play(link: Link, env: VectorEnv, *, weighs: bool) -> None:
    """Answer until the actor closes the socket, which raises EOFError; say how much memory is taken if `weighs`."""
    while (message := link.receive(None)) is not None:
        fields, arrays = message
        try:
            answer, columns = _answer(env, fields, arrays)
        except BaseException as error:  # of the user's: SystemExit is one of them
            link.send(_failure(error))
        else:
            memory = {"memory_bytes": linux.resident_bytes()} if weighs else {}
            link.send(answer | memory, columns)


def _answer(
    env: VectorEnv, fields: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    from tidemill.envs.interface import action_mask_of

    if fields["do"] == "render":
        picture = env.render(fields["env_index"])
        return {}, {} if picture is None else {"picture": picture}
    episodes: list[dict[str, Any]] = []
    if fields["do"] == "reset":
        columns: dict[str, Array] = {"observation": env.reset(fields["seed"])}
    else:
        step = env.step(arrays["action"])
        columns = {name: getattr(step, name) for name in STEP_COLUMNS}
        episodes = [asdict(each) for each in step.episodes]
    mask = action_mask_of(env)
    return {"episodes": episodes}, columns if mask is None else columns | {"mask": mask}


def _failure(error: BaseException) -> dict[str, Any]:
    from tidemill.envs.parts import as_failure
    from tidemill.errors import ConfigError, InvalidArgument

    if isinstance(error, ConfigError):
        return {"refused": str(error)}
    if isinstance(error, InvalidArgument):  # an action
        return {"wrong": str(error)}
    failure = as_failure(error)
    trace = failure.trace or "".join(traceback.format_exception(error))
    return {"failed": failure.kind, "reason": str(failure), "trace": trace}


def read_settings(fields: dict[str, Any]) -> EnvSettings:
    """Return the settings that a message has, without what the actor does itself."""
    from tidemill.envs.settings import EnvSettings

    settings = EnvSettings(**fields | {"observation_indices": tuple(fields["observation_indices"])})
    return replace(settings, isolate=False, max_memory_mib=0)


if __name__ == "__main__":
    main()
