"""Settings of the environments that an actor or an evaluator steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.errors import ConfigError

INFO, OBSERVATION = "info", "observation"
"""Where `env.action_mask` finds the masks."""

EnvArgument = Any
"""Values that an environment's constructor may get from a config file or the command line: what YAML has,
with lists and mappings."""

_ATARI = (
    "frame_stack",
    "frame_skip",
    "noop_max",
    "fire_reset",
    "episodic_life",
    "sticky_actions",
    "clip_rewards",
    "full_action_space",
    "max_frames",
)


@dataclass(frozen=True)
class EnvSettings:
    """The environment, how many are stepped at once, and how Atari games are preprocessed.

    The defaults of the Atari fields are those of Mnih et al. (2015), "Human-level control through
    deep reinforcement learning", Methods. Other environments refuse other values.

    Raises:
        ConfigError: A value is out of range; the message names the field, the value and the range.
    """

    id: str = "LunarLanderContinuous-v3"
    """Gymnasium id (`CartPole-v1`) or Atari game (`ALE/Pong-v5` or `ALE/Pong`). Also an id that a module registers
    (`module:Id-v0`), or a function or class that makes a gymnasium.Env (`module:function`). It is called with
    `env.kwargs` and, if it has a parameter `training`, with true in actors and false in evaluation."""
    kwargs: Mapping[str, EnvArgument] = field(default_factory=dict)
    """Arguments of the environment's constructor, by name. Must be empty for an `ALE/` game."""
    vector: str = ""
    """Function or class that makes a whole batch of environments, `module:name`. It is called with `num_envs` and
    `env.kwargs` and returns a gymnasium.vector.VectorEnv or a tidemill.VectorEnv. `env.id` is then only a name for the
    environment."""
    spaces: Mapping[str, EnvArgument] = field(default_factory=dict)
    """Spaces of an environment that only simulators have (docs/tutorials/simulators.md); `env.id` is then a name.
    `observation` is the dtype, `float32` or `uint8`, and the shape, such as `[float32, 4]`, or a mapping of several
    names to these. Beside it stands one of `num_actions`, `action_sizes` and `action_shape`, and `masks_actions` if
    each step has a mask: `{observation: [float32, 4], num_actions: 2}`."""
    num_envs: int = 16
    """Environments that one actor steps together, at least 1."""
    max_episode_steps: int = 0
    """Agent decisions after which a training episode is truncated. 0 keeps the environment's own limit."""
    max_evaluation_steps: int = 0
    """Agent decisions after which an evaluation episode is truncated. 0 keeps the environment's own limit. Set it for
    an environment without a limit: otherwise the evaluation of a policy that never fails never ends."""
    step_timeout_s: float = 300.0
    """Longest time for one step, in seconds. After half of it the process reports itself unhealthy; after all of it the
    process ends and is restarted. With `env.isolate` only the environment's own process is restarted. 0: no limit,
    except in the evaluator once the run is over, where `evaluator.last_timeout_s` applies."""
    reset_timeout_s: float = 0.0
    """Longest time to make and reset an environment, in seconds; 0: as long as a step. Without `env.isolate` a call may
    step some environments and reset others, so the longer of the two limits counts for both."""
    on_failure: str = "restart"
    """What an actor does when an environment raises, returns something wrong, or, with `env.isolate`, hangs or dies.
    `restart`: cut the episode as truncated and restart this environment; the others play on. `stop`: end the run with
    the traceback. A run with `run.deterministic` restarts the whole actor instead, and plays its rounds again."""
    max_restarts: int = 7
    """Restarts of one environment within 200 of its steps before the next failure ends the run, 0 or more.
    An environment that fails at every first step ends the run after 7 s."""
    restart_backoff_s: float = 0.1
    """Pause before the second restart within 200 steps, in seconds; it doubles up to 10 s. The first has none."""
    isolate: bool = False
    """Whether each environment of actors and the evaluator has a separate process (with `env.vector`: each batch), so
    that a hang or a crash in native code costs an episode and not the process. A step takes about 0.5 ms more of
    processor time."""
    max_memory_mib: int = 0
    """Memory of an environment's process, in MiB, above which it is replaced after the episode; at twice as much the
    episode is cut. 0: no limit. Needs `env.isolate`."""
    flatten: bool = False
    """Turn every observation (dict, tuple, image) into one float32 vector, with discrete parts one-hot. Otherwise each
    part of a Dict or Tuple is stored as a separate column, and images and vectors have separate networks."""
    observation_indices: tuple[int, ...] = ()
    """Positions of the numbers of a vector observation that the agent sees, from 0. Empty: all. `[0, 2]` of CartPole
    leaves out the velocities, which makes a task that needs memory."""
    observation_stack: int = 1
    """Newest observations that the network sees at once, 1 to 16. At the start of an episode the first one is repeated.
    Must be 1 for an `ALE/` game, which has `frame_stack`."""
    action_mask: str = ""
    """Place where each step lists the legal discrete actions. `info.KEY`: in `info[KEY]`. `observation.KEY`: under that
    key of a Dict observation, which is then removed from the observation. Empty: every action is legal. A mask has one
    entry per action, bool or integers, where 1 is legal."""
    joint_actions: bool = False
    """Turn every combination of MultiDiscrete or MultiBinary actions into one discrete action, at most 65,536.
    Algorithms that make a single choice (`dqn`, `r2d2`) need it."""
    frame_stack: int = 4
    """Atari: newest frames that the network sees at once, 1 to 16."""
    frame_skip: int = 4
    """Atari: emulator frames per agent decision, at least 1. Rewards are summed over them; the observation is the
    maximum of the last two."""
    noop_max: int = 30
    """Atari: most frames without action at the start of an episode; the number is random."""
    fire_reset: bool = True
    """Atari: press FIRE at the start of a game that has it. After a lost life the agent must press it."""
    episodic_life: bool = True
    """Atari, training only: a lost life terminates the episode, while the game continues."""
    sticky_actions: float = 0.0
    """Atari: probability that a frame repeats the last action, 0 to 1 (Machado et al., 2018: 0.25)."""
    clip_rewards: bool = True
    """Atari, training only: replace a reward by its sign, -1, 0 or 1. Reported returns stay raw."""
    full_action_space: bool = False
    """Atari: offer all 18 joystick actions instead of those that the game uses."""
    max_frames: int = 108_000
    """Atari: emulator frames after which a game is truncated (108,000 is 30 minutes at 60 frames/s)."""

    def __post_init__(self) -> None:
        _check(bool(self.id), "id", self.id, "a gymnasium id, ALE/Game, module:Id or module:function")
        _check(self.num_envs >= 1, "num_envs", self.num_envs, "at least 1")
        _check(self.max_episode_steps >= 0, "max_episode_steps", self.max_episode_steps, "0 or more")
        _check(self.max_evaluation_steps >= 0, "max_evaluation_steps", self.max_evaluation_steps, "0 or more")
        _check(self.step_timeout_s >= 0, "step_timeout_s", self.step_timeout_s, "0 or more")
        _check(self.reset_timeout_s >= 0, "reset_timeout_s", self.reset_timeout_s, "0 or more")
        _check(self.on_failure in ("restart", "stop"), "on_failure", self.on_failure, "'restart' or 'stop'")
        _check(self.max_restarts >= 0, "max_restarts", self.max_restarts, "0 or more")
        _check(self.restart_backoff_s >= 0, "restart_backoff_s", self.restart_backoff_s, "0 or more")
        _check(self.max_memory_mib >= 0, "max_memory_mib", self.max_memory_mib, "0 or more")
        _check(self.isolate or not self.max_memory_mib, "max_memory_mib", self.max_memory_mib, "0 without env.isolate")
        _check(
            min(self.observation_indices, default=0) >= 0,
            "observation_indices",
            self.observation_indices,
            "positions from 0",
        )
        _check(
            not (self.is_atari and self.observation_indices),
            "observation_indices",
            self.observation_indices,
            "nothing for an ALE/ game",
        )
        _check(1 <= self.frame_stack <= 16, "frame_stack", self.frame_stack, "1 to 16")
        _check(1 <= self.observation_stack <= 16, "observation_stack", self.observation_stack, "1 to 16")
        is_stacked = self.is_atari and not self.vector and self.observation_stack > 1
        _check(not is_stacked, "observation_stack", self.observation_stack, "1 for an ALE/ game; set env.frame_stack")
        _check(self.frame_skip >= 1, "frame_skip", self.frame_skip, "at least 1")
        _check(self.noop_max >= 0, "noop_max", self.noop_max, "at least 0")
        _check(0.0 <= self.sticky_actions <= 1.0, "sticky_actions", self.sticky_actions, "0 to 1")
        _check(self.max_frames >= self.frame_skip, "max_frames", self.max_frames, "at least frame_skip")
        is_ours = self.is_atari and not self.vector
        _check(not (is_ours and self.kwargs), "kwargs", dict(self.kwargs), "nothing for an ALE/ game")
        _check(not self.vector or ":" in self.vector, "vector", self.vector, "module:name, or nothing")
        self._check_action_mask()
        self._check_atari()
        for name in ("flatten", "observation_indices"):
            value = getattr(self, name)
            _check(not (self.vector and value), name, value, "nothing beside env.vector, which must do it itself")

    def _check_action_mask(self) -> None:
        source, _, key = self.action_mask.partition(".")
        sources = (INFO,) if self.vector else (INFO, OBSERVATION)
        allowed = "nothing, or " + " or ".join(f"{each}.KEY" for each in sources)
        is_valid = not self.action_mask or (source in sources and bool(key))
        _check(is_valid, "action_mask", self.action_mask, allowed + (" beside env.vector" if self.vector else ""))
        is_ours = self.is_atari and not self.vector
        _check(not (is_ours and self.action_mask), "action_mask", self.action_mask, "nothing for an ALE/ game")

    def _check_atari(self) -> None:
        """Refuse what has no effect: only an `ALE/` game of Tidemill's own is preprocessed."""
        if self.is_atari and not self.vector:
            return
        for name in _ATARI:
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            other = "; env.observation_stack shows several observations at once" if name == "frame_stack" else ""
            what = "env.vector" if self.vector else f"env.id {self.id!r}"
            _check(value == default, name, value, f"{default!r} with {what}, as it is for ALE/ games alone{other}")

    def max_steps(self, *, training: bool) -> int:
        """Return the agent decisions after which an episode is truncated; 0 keeps the environment's own limit."""
        return self.max_episode_steps if training else self.max_evaluation_steps

    @property
    def longest_call_s(self) -> float:
        """How long a call that steps some environments and resets others may take, in seconds; 0: for ever."""
        return max(self.step_timeout_s, self.reset_timeout_s) if self.step_timeout_s else 0.0

    @property
    def is_atari(self) -> bool:
        """Whether the id names an Atari game of the Arcade Learning Environment."""
        return self.id.startswith("ALE/")


def _check(is_valid: bool, name: str, value: object, allowed: str) -> None:
    if not is_valid:
        raise ConfigError(f"env.{name} is {value!r}, allowed: {allowed}")
