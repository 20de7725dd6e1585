"""The tasks of the race: settings that every contender trains with.

Imports the standard library alone, because each peer reads it in an environment without Tidemill.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (101, 102, 103)
"""Declared before the first timed training; on the first, the threads of Pong's learner were chosen, nothing else."""
EVALUATION_EPISODES = 20
"""Of each evaluation during training, stepped together."""
EVALUATIONS = 10
"""Of a training: after each tenth of its decisions."""
TEST_EPISODES = 100
"""Fresh episodes that the policy plays with which training ended."""
EVALUATION_SEED, TEST_SEED = 10_000, 20_010_000
"""First seeds of the episodes; neither is a seed of training."""


@dataclass(frozen=True)
class PPO:
    """Synchronous PPO with tanh layers, apart for policy and value; advantages are normalised per minibatch."""

    rollout: int
    """Steps of each environment before an update."""
    epochs: int
    minibatches: int
    learning_rate: float
    """Falls linearly to 0 over the training."""
    gamma: float
    gae_lambda: float
    entropy_coefficient: float = 0.0
    clip: float = 0.2
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)


@dataclass(frozen=True)
class DQN:
    """DQN with a Huber loss and ReLU layers; neither double nor dueling, one-step targets."""

    batch_size: int
    learning_rate: float
    updates_per_decision: float
    target_period: int
    """Updates between two copies to the target network."""
    epsilon_final: float
    epsilon_decisions: int
    """Decisions over which epsilon falls from 1."""
    replay_size: int
    learning_starts: int
    gamma: float = 0.99
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (256, 256)


@dataclass(frozen=True)
class SAC:
    """SAC with two critics, ReLU layers and a learned temperature; one actor update for each of the critics."""

    batch_size: int
    learning_rate: float
    updates_per_decision: float
    tau: float
    learning_starts: int
    """Decisions at random, before the first update."""
    replay_size: int
    gamma: float = 0.99
    hidden: tuple[int, ...] = (256, 256)


@dataclass(frozen=True)
class Task:
    """An environment, a budget, and settings."""

    name: str
    title: str
    env_id: str
    num_envs: int
    decisions: int
    target: float | None
    """Mean return that the time to the target is measured to; None: too few decisions for any."""
    settings: PPO | DQN | SAC
    source: str
    """Where the settings are from."""
    package: str = ""
    """That the environment needs besides gymnasium."""
    evaluations: int = EVALUATIONS
    evaluation_episodes: int = EVALUATION_EPISODES
    test_episodes: int = TEST_EPISODES
    threads: int = 1
    """Threads of torch in a program of one process. Small layers are slower with two."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm, in lower case."""
        return type(self.settings).__name__.lower()

    @property
    def every(self) -> int:
        """Decisions from one evaluation to the next."""
        return max(self.decisions // self.evaluations, 1)

    @property
    def is_atari(self) -> bool:
        """Whether the network sees four frames of a game, through the Nature convolutions and one layer."""
        return self.env_id.startswith("ALE/")


_ZOO = "RL Baselines3 Zoo"
_TASKS = (
    Task(
        "cartpole_ppo",
        "CartPole, PPO",
        "CartPole-v1",
        num_envs=8,
        decisions=100_000,
        target=475,
        settings=PPO(rollout=32, epochs=20, minibatches=1, learning_rate=1e-3, gamma=0.98, gae_lambda=0.8),
        source=f"{_ZOO}, with a constant clip",
    ),
    Task(
        "cartpole_dqn",
        "CartPole, DQN",
        "CartPole-v1",
        num_envs=8,
        decisions=50_000,
        target=475,
        settings=DQN(
            batch_size=64,
            learning_rate=1e-3,
            updates_per_decision=0.5,
            target_period=100,
            epsilon_final=0.04,
            epsilon_decisions=8_000,
            replay_size=100_000,
            learning_starts=1_000,
        ),
        source=f"{_ZOO}, with its updates spread evenly, a copy to the target per 100 and a smaller step size",
    ),
    Task(
        "pendulum_sac",
        "Pendulum, SAC",
        "Pendulum-v1",
        num_envs=4,
        decisions=20_000,
        target=-200,
        settings=SAC(
            batch_size=128,
            learning_rate=1e-3,
            updates_per_decision=0.5,
            tau=0.01,
            learning_starts=500,
            replay_size=100_000,
            hidden=(64, 64),
        ),
        source="configs/pendulum_sac.yaml, with a constant step size",
    ),
    Task(
        "lunarlander_dqn",
        "LunarLander, DQN",
        "LunarLander-v3",
        num_envs=16,
        decisions=100_000,
        target=200,
        settings=DQN(
            batch_size=128,
            learning_rate=6.3e-4,
            updates_per_decision=1.0,
            target_period=250,
            epsilon_final=0.1,
            epsilon_decisions=12_000,
            replay_size=50_000,
            learning_starts=200,
        ),
        source=_ZOO,
        package="Box2D",
    ),
    Task(
        "lunarlander_ppo",
        "LunarLander, PPO",
        "LunarLander-v3",
        num_envs=16,
        decisions=500_000,
        target=200,
        settings=PPO(
            rollout=1024,
            epochs=4,
            minibatches=256,
            learning_rate=3e-4,
            gamma=0.999,
            gae_lambda=0.98,
            entropy_coefficient=0.01,
        ),
        source=f"{_ZOO}, with half its decisions",
        package="Box2D",
    ),
    Task(
        "halfcheetah_sac",
        "HalfCheetah, SAC",
        "HalfCheetah-v5",
        num_envs=4,
        decisions=20_000,
        target=1_000,
        settings=SAC(
            batch_size=256,
            learning_rate=3e-4,
            updates_per_decision=1.0,
            tau=0.005,
            learning_starts=10_000,
            replay_size=1_000_000,
        ),
        source=f"{_ZOO}, cut at 20,000 decisions",
        package="mujoco",
    ),
    Task(
        "hopper_ppo",
        "Hopper, PPO",
        "Hopper-v5",
        num_envs=4,
        decisions=100_000,
        target=1_000,
        settings=PPO(rollout=512, epochs=10, minibatches=32, learning_rate=3e-4, gamma=0.99, gae_lambda=0.95),
        source="CleanRL, cut at 100,000 decisions and without its normalisation",
        package="mujoco",
    ),
    Task(
        "pong_ppo",
        "Pong, PPO",
        "ALE/Pong-v5",
        num_envs=8,
        decisions=20_480,
        target=None,
        settings=PPO(
            rollout=128,
            epochs=4,
            minibatches=4,
            learning_rate=2.5e-4,
            gamma=0.99,
            gae_lambda=0.95,
            entropy_coefficient=0.01,
            clip=0.1,
            hidden=(512,),
        ),
        source="CleanRL, cut at 20 rollouts",
        package="ale_py",
        evaluations=1,
        evaluation_episodes=5,
        test_episodes=10,
        threads=2,
    ),
    Task(
        "pong_dqn",
        "Pong, DQN",
        "ALE/Pong-v5",
        num_envs=4,
        decisions=20_000,
        target=None,
        settings=DQN(
            batch_size=32,
            learning_rate=1e-4,
            updates_per_decision=0.25,
            target_period=250,
            epsilon_final=0.01,
            epsilon_decisions=2_000,
            replay_size=100_000,
            learning_starts=1_000,
            hidden=(512,),
        ),
        source=f"{_ZOO}, cut at 20,000 decisions, with updates from 1,000 on",
        package="ale_py",
        evaluations=1,
        evaluation_episodes=5,
        test_episodes=10,
        threads=2,
    ),
)
TASKS = {task.name: task for task in _TASKS}
