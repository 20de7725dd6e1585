"""TorchRL as a contender: its collector, buffers and losses, put together as its own implementations do."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from tensordict.nn import TensorDictModule, TensorDictSequential
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import DoubleToFloat, ExplorationType, GymWrapper, TransformedEnv, set_exploration_type
from torchrl.modules import (
    MLP,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, HardUpdate, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

from benchmarks.race.evaluation import Act
from benchmarks.race.peers.course import Course, run
from benchmarks.race.tasks import DQN, PPO, SAC, Task


def make_envs(task: Task, seed: int) -> Any:  # noqa: ANN401 - has no types
    """Return the environments of a task, stepped together."""
    mode = gymnasium.vector.AutoresetMode.DISABLED  # the collector resets what has ended
    made = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(task.env_id)] * task.num_envs, autoreset_mode=mode)
    envs = TransformedEnv(GymWrapper(made), DoubleToFloat())
    envs.set_seed(seed)
    return envs


def make_policy(task: Task, envs: Any) -> Any:  # noqa: ANN401 - likewise
    """Return the network that acts."""
    hidden, spec = list(task.settings.hidden), envs.action_spec_unbatched
    inputs = envs.observation_spec["observation"].shape[-1]
    if isinstance(task.settings, DQN):
        return QValueActor(_mlp(inputs, spec.n, hidden, nn.ReLU), in_keys=["observation"], spec=spec)
    if isinstance(task.settings, PPO):
        logits = TensorDictModule(
            _mlp(inputs, spec.n, hidden, nn.Tanh, last_std=0.01), in_keys=["observation"], out_keys=["logits"]
        )
        return ProbabilisticActor(
            logits,
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
            default_interaction_type=ExplorationType.RANDOM,
        )
    head = nn.Sequential(_mlp(inputs, 2 * spec.shape[-1], hidden, nn.ReLU), NormalParamExtractor("exp", scale_lb=1e-4))
    return ProbabilisticActor(
        TensorDictModule(head, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        default_interaction_type=ExplorationType.RANDOM,
    )


def train_ppo(task: Task, settings: PPO, seed: int, course: Course) -> Any:  # noqa: ANN401 - likewise
    """Clipped PPO."""
    envs = make_envs(task, seed)
    policy = make_policy(task, envs)
    inputs = envs.observation_spec["observation"].shape[-1]
    critic = ValueOperator(_mlp(inputs, 1, list(settings.hidden), nn.Tanh, last_std=1.0), in_keys=["observation"])
    frames = settings.rollout * task.num_envs
    advantage = GAE(gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor_network=policy,
        critic_network=critic,
        clip_epsilon=settings.clip,
        loss_critic_type="l2",
        entropy_coeff=settings.entropy_coefficient,
        critic_coeff=settings.value_coefficient / 2.0,  # half the squared error, as the others have it
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=settings.learning_rate, eps=1e-5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(frames),
        sampler=SamplerWithoutReplacement(),
        batch_size=frames // settings.minibatches,
    )
    collector = _collector(envs, policy, frames, task.decisions // frames * frames)
    decisions = updates = 0
    for data in collector:
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1.0 - decisions / task.decisions)
        decisions += data.numel()
        with torch.no_grad():
            rollout = advantage(data)
        buffer.empty()
        buffer.extend(rollout.reshape(-1))
        for _ in range(settings.epochs):
            for batch in buffer:
                losses = loss_module(batch)
                loss = losses["loss_critic"] + losses["loss_objective"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), settings.max_grad_norm)
                optimizer.step()
                updates += 1
        course.at(decisions, updates, act_of(policy, task))
    return _end(collector, course, decisions, updates, policy, task)


def train_dqn(task: Task, settings: DQN, seed: int, course: Course) -> Any:  # noqa: ANN401 - likewise
    """DQN with a target network that is copied."""
    envs = make_envs(task, seed)
    policy = make_policy(task, envs)
    explore = EGreedyModule(
        annealing_num_steps=settings.epsilon_decisions,
        eps_init=1.0,
        eps_end=settings.epsilon_final,
        spec=envs.action_spec_unbatched,
    )
    buffer = _replay(settings)
    loss_module = DQNLoss(policy, loss_function="smooth_l1", delay_value=True, double_dqn=False)
    loss_module.make_value_estimator(gamma=settings.gamma)
    target = HardUpdate(loss_module, value_network_update_interval=settings.target_period)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=settings.learning_rate)
    collector = _collector(envs, TensorDictSequential(policy, explore), task.num_envs, task.decisions)
    decisions = updates = 0
    for data in collector:
        decisions += data.numel()
        explore.step(data.numel())
        buffer.extend(data.reshape(-1))
        if decisions > settings.learning_starts:
            for _ in range(round(settings.updates_per_decision * task.num_envs)):
                loss = loss_module(buffer.sample())["loss"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), settings.max_grad_norm)
                optimizer.step()
                target.step()
                updates += 1
        course.at(decisions, updates, act_of(policy, task))
    return _end(collector, course, decisions, updates, policy, task)


def train_sac(task: Task, settings: SAC, seed: int, course: Course) -> Any:  # noqa: ANN401 - likewise
    """SAC with two critics and a learned temperature."""
    envs = make_envs(task, seed)
    policy = make_policy(task, envs)
    inputs = envs.observation_spec["observation"].shape[-1] + envs.action_spec_unbatched.shape[-1]
    critic = ValueOperator(_mlp(inputs, 1, list(settings.hidden), nn.ReLU), in_keys=["action", "observation"])
    loss_module = SACLoss(
        actor_network=policy, qvalue_network=critic, num_qvalue_nets=2, loss_function="l2", delay_qvalue=True
    )
    loss_module.make_value_estimator(gamma=settings.gamma)
    target = SoftUpdate(loss_module, tau=settings.tau)
    rate = settings.learning_rate
    optimizers = [
        torch.optim.Adam(list(loss_module.qvalue_network_params.flatten_keys().values()), lr=rate),
        torch.optim.Adam(list(loss_module.actor_network_params.flatten_keys().values()), lr=rate),
        torch.optim.Adam([loss_module.log_alpha], lr=rate),
    ]
    buffer = _replay(settings)
    collector = _collector(envs, policy, task.num_envs, task.decisions, random=settings.learning_starts)
    decisions = updates = 0
    for data in collector:
        decisions += data.numel()
        buffer.extend(data.reshape(-1))
        if decisions > settings.learning_starts:
            for _ in range(round(settings.updates_per_decision * task.num_envs)):
                losses = loss_module(buffer.sample())
                for optimizer in optimizers:
                    optimizer.zero_grad()
                (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
                for optimizer in optimizers:
                    optimizer.step()
                target.step()
                updates += 1
        course.at(decisions, updates, act_of(policy, task))
    return _end(collector, course, decisions, updates, policy, task)


def act_of(policy: Any, task: Task) -> Act:  # noqa: ANN401 - likewise
    """Return the deterministic policy of a network."""
    from tensordict import TensorDict

    @torch.no_grad()
    def act(observation: NDArray[np.float32]) -> NDArray[Any]:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            data = policy(TensorDict({"observation": torch.from_numpy(observation)}, [len(observation)]))
        chosen = data["action"]
        return chosen.numpy() if isinstance(task.settings, SAC) else chosen.int().argmax(-1).numpy()  # type: ignore[no-any-return]

    return act


def _mlp(inputs: int, outputs: int, hidden: list[int], activation: type[nn.Module], last_std: float = 0.0) -> Any:  # noqa: ANN401
    network = MLP(in_features=inputs, out_features=outputs, num_cells=hidden, activation_class=activation)
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for layer in layers if last_std else ():
        nn.init.orthogonal_(layer.weight, last_std if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return network


def _collector(envs: Any, policy: Any, frames: int, total: int, random: int = 0) -> Any:  # noqa: ANN401
    return Collector(
        envs,
        policy,
        frames_per_batch=frames,
        total_frames=total,
        init_random_frames=random or None,
        device="cpu",
        trust_policy=True,
    )


def _replay(settings: DQN | SAC) -> Any:  # noqa: ANN401 - likewise
    return TensorDictReplayBuffer(storage=LazyTensorStorage(settings.replay_size), batch_size=settings.batch_size)


def _end(collector: Any, course: Course, decisions: int, updates: int, policy: Any, task: Task) -> Any:  # noqa: ANN401
    collector.shutdown()
    versions = {name: version(name) for name in ("torchrl", "tensordict", "torch", "gymnasium")}
    course.end(decisions, updates, act_of(policy, task), versions)
    return policy


def train(task: Task, seed: int, course: Course) -> None:
    """Train, evaluate on the way, and save the policy."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    settings = task.settings
    if isinstance(settings, PPO):
        policy = train_ppo(task, settings, seed, course)
    elif isinstance(settings, DQN):
        policy = train_dqn(task, settings, seed, course)
    else:
        policy = train_sac(task, settings, seed, course)
    torch.save(policy.state_dict(), course.folder / "model.pt")


def load(task: Task, folder: Path) -> Act:
    """Return the policy that was saved."""
    policy = make_policy(task, make_envs(task, seed=0))
    policy.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    return act_of(policy, task)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(train, load)
