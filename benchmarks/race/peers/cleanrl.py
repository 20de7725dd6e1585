"""CleanRL's way as a contender: each algorithm from top to bottom in this file, one process, no library but torch.

Written after CleanRL's ppo.py, ppo_continuous_action.py, ppo_atari_envpool.py, dqn.py, dqn_atari.py and
sac_continuous_action.py: their networks, their initialisation, their order of steps, gymnasium's SyncVectorEnv or, for
a game, a vector environment in C++. Hyperparameters are the task's.
"""

from __future__ import annotations

import warnings
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional

from benchmarks.race.evaluation import Act, make_atari
from benchmarks.race.peers.course import Course, run
from benchmarks.race.tasks import DQN, PPO, SAC, Task


def make_envs(task: Task) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Return the environments; an episode's end and the next one's first observation come with the same step."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    if task.is_atari:
        return make_atari(task.env_id, task.num_envs, episodic_life=True, autoreset_mode=mode)
    return gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(task.env_id))] * task.num_envs,
        autoreset_mode=mode,
    )


def layers(sizes: tuple[int, ...], activation: type[nn.Module], last_std: float = 0.0) -> nn.Sequential:
    """Return linear layers with an activation between them, with PPO's orthogonal weights if `last_std` is given."""
    modules: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layer = nn.Linear(inputs, outputs)
        if last_std:
            nn.init.orthogonal_(layer.weight, last_std if index == len(sizes) - 2 else 2**0.5)
            nn.init.zeros_(layer.bias)
        modules += [layer, activation()]
    return nn.Sequential(*modules[:-1])


class Convolutions(nn.Module):
    """Those of the Nature paper and a layer, from frames of 0 to 255."""

    def __init__(self, outputs: int, *, orthogonal: bool = False) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        parts: list[nn.Module] = [part for each in convolutions for part in (each, nn.ReLU())]
        self.parts = nn.Sequential(*parts, nn.Flatten(), nn.Linear(64 * 7 * 7, outputs), nn.ReLU())
        for part in self.parts if orthogonal else ():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(part.weight, 2**0.5)
                nn.init.zeros_(part.bias)  # type: ignore[arg-type]

    def forward(self, frames: Tensor) -> Tensor:
        """Return features."""
        return self.parts(frames / 255.0)  # type: ignore[no-any-return]


class PPOAgent(nn.Module):
    """A policy and a value, behind the same convolutions if they see a game."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any], settings: PPO) -> None:
        super().__init__()
        space = envs.single_action_space
        self.is_discrete = isinstance(space, gymnasium.spaces.Discrete)
        actions = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape or ()))
        shape = envs.single_observation_space.shape or ()
        sizes = settings.hidden if len(shape) > 1 else (int(np.prod(shape)), *settings.hidden)
        self.trunk = Convolutions(sizes[0], orthogonal=True) if len(shape) > 1 else nn.Identity()
        self.critic = layers((*sizes, 1), nn.Tanh, last_std=1.0)
        self.actor = layers((*sizes, actions), nn.Tanh, last_std=0.01)
        self.log_std = nn.Parameter(torch.zeros(1, 0 if self.is_discrete else actions))

    def act(self, observation: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, their log-probabilities, entropies and values."""
        seen = self.trunk(observation)
        value, head = self.critic(seen).flatten(), self.actor(seen)
        if self.is_discrete:
            choice = Categorical(logits=head)
            chosen = choice.sample() if action is None else action
            return chosen, choice.log_prob(chosen), choice.entropy(), value
        density = Normal(head, self.log_std.expand_as(head).exp())
        chosen = density.sample() if action is None else action
        log_prob = density.log_prob(chosen).sum(1)
        return chosen, log_prob, density.entropy().sum(1), value


def train_ppo(task: Task, settings: PPO, seed: int, course: Course) -> nn.Module:  # noqa: PLR0915 - from top to bottom
    """PPO, as CleanRL writes it."""
    envs = make_envs(task)
    agent = PPOAgent(envs, settings)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=1e-5)
    steps, count = settings.rollout, task.num_envs
    shape = envs.single_observation_space.shape or ()
    observations = torch.zeros((steps, count, *shape))
    actions = torch.zeros((steps, count, *(envs.single_action_space.shape or ())))
    log_probs, rewards, ends, values = (torch.zeros((steps, count)) for _ in range(4))
    space = envs.single_action_space
    decisions = updates = 0
    following = torch.as_tensor(envs.reset(seed=seed)[0], dtype=torch.float32)
    ended = torch.zeros(count)
    iterations = task.decisions // (steps * count)
    for iteration in range(iterations):
        optimizer.param_groups[0]["lr"] = (1.0 - iteration / iterations) * settings.learning_rate
        for step in range(steps):
            observations[step], ends[step] = following, ended
            with torch.no_grad():
                action, log_prob, _, value = agent.act(following)
            actions[step], log_probs[step], values[step] = action, log_prob, value
            played = action.numpy()
            if isinstance(space, gymnasium.spaces.Box):
                played = np.clip(played, space.low, space.high)
            observation, reward, terminated, truncated, _ = envs.step(played)
            rewards[step] = torch.as_tensor(reward, dtype=torch.float32)
            following = torch.as_tensor(observation, dtype=torch.float32)
            ended = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
            decisions += count
            course.at(decisions, updates, act_of(agent, task))
        with torch.no_grad():
            next_value = agent.critic(agent.trunk(following)).flatten()
            advantages, last = torch.zeros_like(rewards), torch.zeros(count)
            for step in reversed(range(steps)):
                continues = 1.0 - (ended if step == steps - 1 else ends[step + 1])
                after = next_value if step == steps - 1 else values[step + 1]
                delta = rewards[step] + settings.gamma * after * continues - values[step]
                last = delta + settings.gamma * settings.gae_lambda * continues * last
                advantages[step] = last
            returns = (advantages + values).flatten()
        flat = observations.flatten(0, 1), actions.flatten(0, 1), log_probs.flatten(), advantages.flatten()
        batch, size = steps * count, steps * count // settings.minibatches
        for _ in range(settings.epochs):
            order = torch.randperm(batch)
            for start in range(0, batch, size):
                index = order[start : start + size]
                observation_, action_, old_log_prob, advantage = (each[index] for each in flat)
                _, log_prob, entropy, value = agent.act(observation_, action_)
                ratio = (log_prob - old_log_prob).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
                policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                value_loss = 0.5 * (value - returns[index]).square().mean()
                loss = policy_loss - settings.entropy_coefficient * entropy.mean()
                loss = loss + settings.value_coefficient * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
                optimizer.step()
                updates += 1
    course.end(decisions, updates, act_of(agent, task), _versions())
    return agent


class Replay:
    """A ring of transitions in numpy arrays, drawn from uniformly."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any], size: int, rng: np.random.Generator) -> None:
        shape = envs.single_observation_space.shape or ()
        space = envs.single_action_space
        self._size, self._rng, self._at, self._held = size, rng, 0, 0
        dtype = np.uint8 if len(shape) > 1 else np.float32
        self._observation, self._next = (np.zeros((size, *shape), dtype) for _ in range(2))
        self._action = np.zeros((size, *(space.shape or ())), space.dtype)
        self._reward, self._continues = (np.zeros(size, np.float32) for _ in range(2))

    def add(self, observation: Any, following: Any, action: Any, reward: Any, terminated: Any) -> None:  # noqa: ANN401
        """Add a transition of each environment."""
        index = (self._at + np.arange(len(reward))) % self._size
        self._observation[index], self._next[index], self._action[index] = observation, following, action
        self._reward[index], self._continues[index] = reward, 1.0 - terminated
        self._at, self._held = (self._at + len(reward)) % self._size, min(self._held + len(reward), self._size)

    def sample(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return observations, next observations, actions, rewards, and 0 where the next one has no value."""
        index = self._rng.integers(0, self._held, count)
        columns = (self._observation, self._next, self._action, self._reward, self._continues)
        observation, following, action, reward, continues = (torch.from_numpy(column[index]) for column in columns)
        return observation, following, action, reward, continues


def following_of(observation: NDArray[Any], truncated: NDArray[np.bool_], info: dict[str, Any]) -> NDArray[Any]:
    """Return the observations after a step, those of truncated episodes being their last."""
    following = observation.copy()
    for index in np.flatnonzero(truncated):
        following[index] = info["final_obs"][index]
    return following


def train_dqn(task: Task, settings: DQN, seed: int, course: Course) -> nn.Module:
    """DQN, as CleanRL writes it."""
    envs, rng = make_envs(task), np.random.default_rng(seed)
    network, target = _q_network(envs, settings), _q_network(envs, settings)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    replay = Replay(envs, settings.replay_size, rng)
    envs.action_space.seed(seed)
    decisions = updates = 0
    observation = envs.reset(seed=seed)[0]
    while decisions < task.decisions:
        epsilon = max(
            1.0 - (1.0 - settings.epsilon_final) * decisions / settings.epsilon_decisions, settings.epsilon_final
        )
        with torch.no_grad():
            greedy = network(torch.as_tensor(observation)).argmax(1).numpy()
        action = np.where(rng.random(task.num_envs) < epsilon, envs.action_space.sample(), greedy)
        after, reward, terminated, truncated, info = envs.step(action)
        replay.add(observation, following_of(after, truncated, info), action, reward, terminated)
        observation, decisions = after, decisions + task.num_envs
        if decisions > settings.learning_starts:
            for _ in range(round(settings.updates_per_decision * task.num_envs)):
                now, following, chosen, gained, continues = replay.sample(settings.batch_size)
                with torch.no_grad():
                    wanted = gained + settings.gamma * continues * target(following).amax(1)
                value = network(now).gather(1, chosen.unsqueeze(1)).squeeze(1)
                loss = functional.smooth_l1_loss(value, wanted)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
                optimizer.step()
                updates += 1
                if updates % settings.target_period == 0:
                    target.load_state_dict(network.state_dict())
        course.at(decisions, updates, act_of(network, task))
    course.end(decisions, updates, act_of(network, task), _versions())
    return network


def _q_network(envs: gymnasium.vector.VectorEnv[Any, Any, Any], settings: DQN) -> nn.Sequential:
    space, shape = envs.single_action_space, envs.single_observation_space.shape or ()
    assert isinstance(space, gymnasium.spaces.Discrete)
    if len(shape) > 1:
        return nn.Sequential(Convolutions(settings.hidden[0]), layers((*settings.hidden, int(space.n)), nn.ReLU))
    return layers((int(np.prod(shape)), *settings.hidden, int(space.n)), nn.ReLU)


class SACActor(nn.Module):
    """A Gaussian squashed into the action space."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any], settings: SAC) -> None:
        super().__init__()
        space = envs.single_action_space
        assert isinstance(space, gymnasium.spaces.Box)
        inputs, self.actions = int(np.prod(envs.single_observation_space.shape or ())), int(np.prod(space.shape))
        self.head = layers((inputs, *settings.hidden, 2 * self.actions), nn.ReLU)
        self.register_buffer("scale", torch.as_tensor((space.high - space.low) / 2.0, dtype=torch.float32))
        self.register_buffer("bias", torch.as_tensor((space.high + space.low) / 2.0, dtype=torch.float32))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return drawn actions, their log-densities and the deterministic actions."""
        mean, log_std = self.head(observation).chunk(2, dim=-1)
        log_std = -5.0 + 0.5 * 7.0 * (torch.tanh(log_std) + 1.0)
        density = Normal(mean, log_std.exp())
        raw = density.rsample()
        squashed = torch.tanh(raw)
        scale, bias = self.get_buffer("scale"), self.get_buffer("bias")
        log_prob = density.log_prob(raw) - torch.log(scale * (1.0 - squashed.square()) + 1e-6)
        return squashed * scale + bias, log_prob.sum(1), torch.tanh(mean) * scale + bias


def train_sac(task: Task, settings: SAC, seed: int, course: Course) -> nn.Module:  # noqa: PLR0915 - from top to bottom
    """SAC, as CleanRL writes it."""
    envs = make_envs(task)
    actor = SACActor(envs, settings)
    inputs = int(np.prod(envs.single_observation_space.shape or ())) + actor.actions
    critics, targets = (
        nn.ModuleList(layers((inputs, *settings.hidden, 1), nn.ReLU) for _ in range(2)) for _ in range(2)
    )
    targets.load_state_dict(critics.state_dict())
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=settings.learning_rate)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=settings.learning_rate)
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=settings.learning_rate)
    replay = Replay(envs, settings.replay_size, np.random.default_rng(seed))
    envs.action_space.seed(seed)
    decisions = updates = 0
    observation = np.asarray(envs.reset(seed=seed)[0], np.float32)
    while decisions < task.decisions:
        if decisions < settings.learning_starts:
            action = envs.action_space.sample()
        else:
            with torch.no_grad():
                action = actor(torch.as_tensor(observation))[0].numpy()
        after, reward, terminated, truncated, info = envs.step(action)
        replay.add(observation, following_of(after, truncated, info), action, reward, terminated)
        observation, decisions = np.asarray(after, np.float32), decisions + task.num_envs
        if decisions > settings.learning_starts:
            for _ in range(round(settings.updates_per_decision * task.num_envs)):
                now, following, chosen, gained, continues = replay.sample(settings.batch_size)
                alpha = log_alpha.exp().item()
                with torch.no_grad():
                    next_action, next_log_prob, _ = actor(following)
                    pair = torch.cat((following, next_action), 1)
                    lowest = torch.min(targets[0](pair), targets[1](pair)).flatten()
                    wanted = gained + settings.gamma * continues * (lowest - alpha * next_log_prob)
                pair = torch.cat((now, chosen), 1)
                critic_loss = sum(functional.mse_loss(critic(pair).flatten(), wanted) for critic in critics)
                assert isinstance(critic_loss, Tensor)
                critic_optimizer.zero_grad()
                critic_loss.backward()
                critic_optimizer.step()
                drawn, log_prob, _ = actor(now)
                pair = torch.cat((now, drawn), 1)
                lowest = torch.min(critics[0](pair), critics[1](pair)).flatten()
                actor_loss = (alpha * log_prob - lowest).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                alpha_loss = (-log_alpha.exp() * (log_prob.detach() - actor.actions)).mean()
                alpha_optimizer.zero_grad()
                alpha_loss.backward()
                alpha_optimizer.step()
                for moved, source in zip(targets.parameters(), critics.parameters(), strict=True):
                    moved.data.lerp_(source.data, settings.tau)
                updates += 1
        course.at(decisions, updates, act_of(actor, task))
    course.end(decisions, updates, act_of(actor, task), _versions())
    return actor


def act_of(network: nn.Module, task: Task) -> Act:
    """Return the deterministic policy of a network."""

    @torch.no_grad()
    def act(observation: NDArray[Any]) -> NDArray[Any]:
        seen = torch.from_numpy(observation)
        if isinstance(task.settings, SAC):
            return network(seen)[2].numpy()  # type: ignore[no-any-return]
        if isinstance(task.settings, DQN):
            return network(seen).argmax(1).numpy()  # type: ignore[no-any-return]
        assert isinstance(network, PPOAgent)
        head = network.actor(network.trunk(seen))
        return head.argmax(1).numpy() if network.is_discrete else head.numpy()  # type: ignore[no-any-return]

    return act


def train(task: Task, seed: int, course: Course) -> None:
    """Train, evaluate on the way, and save the network."""
    torch.manual_seed(seed)
    torch.set_num_threads(task.threads)
    settings = task.settings
    if isinstance(settings, PPO):
        network = train_ppo(task, settings, seed, course)
    elif isinstance(settings, DQN):
        network = train_dqn(task, settings, seed, course)
    else:
        network = train_sac(task, settings, seed, course)
    torch.save(network.state_dict(), course.folder / "model.pt")


def network_of(task: Task) -> nn.Module:
    """Return the network whose policy is played, with new parameters."""
    envs, settings = make_envs(task), task.settings
    if isinstance(settings, PPO):
        return PPOAgent(envs, settings)
    return _q_network(envs, settings) if isinstance(settings, DQN) else SACActor(envs, settings)


def load(task: Task, folder: Path) -> Act:
    """Return the policy of a network that was saved."""
    network = network_of(task)
    network.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    return act_of(network, task)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "gymnasium")}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(train, load)
