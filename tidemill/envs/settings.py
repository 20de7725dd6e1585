"""Settings of the environments that an actor or an evaluator steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.settings.check import check, check_at_least, check_between

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
    "threads",
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
    """Environment: a Gymnasium id (`CartPole-v1`) or an Atari game (`ALE/Pong-v5`). Also an id that a module registers
    (`module:Id-v0`), or a function or class that makes a gymnasium.Env (`module:function`). A function is called with
    `env.kwargs` and, if it has a parameter `training`, with true in actors and false in evaluation."""
    kwargs: Mapping[str, EnvArgument] = field(default_factory=dict)
    """Arguments of the environment's constructor, by name. Must be empty for an `ALE/` game."""
    vector: str = ""
    """Function or class, `module:name`, that makes a whole batch of environments. It is called with `num_envs` and
    `env.kwargs` and returns a gymnasium.vector.VectorEnv or a tidemill.VectorEnv. `env.id` is then only a name."""
    spaces: Mapping[str, EnvArgument] = field(default_factory=dict)
    """Spaces of an environment that only simulators have (docs/tutorials/simulators.md). `env.id` is then only a name,
    except with `table.hindsight`. Example: `{observation: [float32, 4], num_actions: 2}`. `observation` is the dtype,
    `float32` or `uint8`, followed by the shape, or a mapping from names to such lists. Exactly one of `num_actions`,
    `action_sizes` and `action_shape` gives the actions. `masks_actions`: each step has an action mask."""
    num_envs: int = 16
    """Environments that one actor steps together, at least 1. More of them make each step of an environment cheaper."""
    max_episode_steps: int = 0
    """Agent decisions after which a training episode is truncated. 0 keeps the environment's own limit."""
    max_evaluation_steps: int = 0
    """Agent decisions after which an evaluation episode is truncated. 0 keeps the environment's own limit. Set it for
    an environment without a limit: otherwise a policy that never fails is evaluated forever."""
    step_timeout_s: float = 300.0
    """Longest time for one step, in seconds. After half of this time the process reports itself unhealthy. At the
    limit it ends and is restarted; with `env.isolate`, only the environment's own process. 0: no limit, except that
    `evaluator.last_timeout_s` limits the evaluation that ends a run."""
    reset_timeout_s: float = 0.0
    """Longest time to make and reset an environment, in seconds. 0: the same as `step_timeout_s`. Making a batch
    of N environments may take N times as long. So may the first resets of N isolated environments. Without
    `env.isolate` one call may step some environments and reset others, so the longer of the two limits applies to
    both."""
    on_failure: str = "restart"
    """Reaction of an actor to an environment that raises, returns something wrong, or, with `env.isolate`, hangs or
    dies. `restart`: truncate the episode and restart this environment; the others keep playing. `drop`: truncate the
    episode and reset the environment without making it again, unless the reset fails or its process is gone. `stop`:
    end the run with the traceback. With `run.deterministic`, `restart` and `drop` restart the whole actor, which plays
    its rounds again."""
    max_restarts: int = 7
    """Maximum number of restarts of one environment within 200 of its steps, 0 or more; with `env.on_failure: drop`,
    its resets count, too. One more failure ends the run. By default an environment that fails at every first step ends
    the run after 7 s."""
    restart_backoff_s: float = 0.1
    """Pause before the second restart within 200 steps, in seconds. It doubles with each further restart, up to 10. The
    first restart has no pause."""
    isolate: bool = False
    """Run each environment in a separate process (with `env.vector`: each batch). A hang or a crash in native code then
    costs an episode instead of the actor or evaluator. A step takes about 0.5 ms more processor time."""
    max_memory_mib: int = 0
    """Memory of an environment's process, in MiB, above which it is replaced after the episode. At twice as much the
    episode is cut. With `env.vector`, the episodes of the batch are cut at the limit. 0: no limit. Needs
    `env.isolate`."""
    flatten: bool = False
    """Turn every observation (dict, tuple, image) into one float32 vector, with discrete parts one-hot. If off, each
    part of a Dict or Tuple is stored as a separate column, and images and vectors have separate networks."""
    observation_indices: tuple[int, ...] = ()
    """Indices, from 0, of the numbers of a vector observation that the agent sees. Empty: all. With `[0, 2]` CartPole
    hides its velocities, and the task needs memory."""
    observation_stack: int = 1
    """Newest observations that the network sees at once, 1 to 16. The first observation of an episode is repeated. Must
    be 1 for an `ALE/` game, which has `frame_stack`."""
    action_mask: str = ""
    """Source of the legal discrete actions at each step. `info.KEY`: `info[KEY]`. `observation.KEY`: that key of a Dict
    observation, which is then removed from the observation. Empty: every action is legal. A mask has one entry per
    action, bool or integer; 1 is legal."""
    joint_actions: bool = False
    """Turn every combination of MultiDiscrete or MultiBinary actions into one discrete action, at most 65,536.
    Algorithms that make a single choice, such as `dqn` and `r2d2`, need it."""
    frame_stack: int = 4
    """Atari: newest frames that the network sees at once, 1 to 16."""
    frame_skip: int = 4
    """Atari: emulator frames per agent decision, at least 1. Rewards are summed over them; the observation is the
    pixelwise maximum of the last two frames."""
    noop_max: int = 30
    """Atari: maximum no-op frames at the start of an episode. Their number is drawn from 0 to this."""
    fire_reset: bool = True
    """Atari: press FIRE at the start of a game that has it. After a lost life the agent has to press it."""
    episodic_life: bool = True
    """Atari, training only: end the episode with a lost life. The game itself continues."""
    sticky_actions: float = 0.0
    """Atari: probability that a frame repeats the last action, 0 to 1 (Machado et al., 2018: 0.25)."""
    clip_rewards: bool = True
    """Atari: replace a reward by its sign, -1, 0 or 1, wherever a policy learns from it or sees it. Reported returns
    stay raw."""
    full_action_space: bool = False
    """Atari: offer all 18 joystick actions instead of those that the game uses."""
    threads: int = 1
    """Atari: threads that step an actor's games, at least 1. More of them help an actor that acts while its learner
    waits, as with PPO; `actor.threads` is the same for its network."""
    max_frames: int = 108_000
    """Atari: emulator frames after which a game is truncated (108,000 is 30 minutes at 60 frames/s)."""

    def __post_init__(self) -> None:
        _check(bool(self.id), "id", self.id, "a gymnasium id, ALE/Game, module:Id or module:function")
        check_at_least(1, "env", self, "num_envs", "frame_skip", "threads")
        check_at_least(0, "env", self, "max_episode_steps", "max_evaluation_steps", "step_timeout_s", "reset_timeout_s")
        check_at_least(0, "env", self, "max_restarts", "restart_backoff_s", "max_memory_mib", "noop_max")
        check_between(1, 16, "env", self, "frame_stack", "observation_stack")
        check_between(0, 1, "env", self, "sticky_actions")
        policies = "'restart', 'drop' or 'stop'"
        _check(self.on_failure in ("restart", "drop", "stop"), "on_failure", self.on_failure, policies)
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
        is_stacked = self.is_atari and self.observation_stack > 1
        _check(not is_stacked, "observation_stack", self.observation_stack, "1 for an ALE/ game; set env.frame_stack")
        _check(self.max_frames >= self.frame_skip, "max_frames", self.max_frames, "at least frame_skip")
        _check(not (self.is_atari and self.kwargs), "kwargs", dict(self.kwargs), "nothing for an ALE/ game")
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
        _check(not (self.is_atari and self.action_mask), "action_mask", self.action_mask, "nothing for an ALE/ game")

    def _check_atari(self) -> None:
        """Refuse what has no effect: only an `ALE/` game of Tidemill's own is preprocessed."""
        if self.is_atari:
            return
        for name in _ATARI:
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            other = "; env.observation_stack shows several observations at once" if name == "frame_stack" else ""
            _check(
                value == default, name, value, f"{default!r} with {self.named_by}, as it is for ALE/ games alone{other}"
            )

    def max_steps(self, *, training: bool) -> int:
        """Return the agent decisions after which an episode is truncated; 0 keeps the environment's own limit."""
        return self.max_episode_steps if training else self.max_evaluation_steps

    @property
    def keeps_failed(self) -> bool:
        """Whether an environment that has failed is reset, and made again only if that fails."""
        return self.on_failure == "drop"

    @property
    def longest_call_s(self) -> float:
        """How long a call that steps some environments and resets others may take, in seconds; 0: for ever."""
        return max(self.step_timeout_s, self.reset_timeout_s) if self.step_timeout_s else 0.0

    @property
    def is_atari(self) -> bool:
        """Whether `id` names an Atari game of the Arcade Learning Environment, which Tidemill makes itself."""
        return self.id.startswith("ALE/") and not self.vector and not self.spaces

    @property
    def named_by(self) -> str:
        """The setting that says which environment it is, as messages name it."""
        return "env.vector" if self.vector else "env.spaces" if self.spaces else f"env.id {self.id!r}"

    @property
    def clips_rewards(self) -> bool:
        """Whether a policy learns from the signs of rewards, and so sees those wherever it looks at the last one."""
        return self.clip_rewards and self.is_atari


def _check(is_valid: bool, name: str, value: object, allowed: str) -> None:
    check(is_valid, f"env.{name}", value, allowed)


def told_limit(setting: str, method: str, envs: int = 1) -> str:
    """Return the setting that limits a call, of so many environments, as messages name it."""
    counted = f" for each of {envs} environments" if envs > 1 else ""
    is_own = setting == "env.step_timeout_s" and method in ("the constructor", "reset")
    return f"{setting}{counted}" + ("; set env.reset_timeout_s to give it longer" if is_own else "")
