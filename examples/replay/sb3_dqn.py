"""DQN of Stable-Baselines3 with its replay buffer in a replay server: `replay_buffer_class` is all that changes.

    pip install stable-baselines3
    tidemill replay --folder data
    python sb3_dqn.py

The buffer works with any off-policy algorithm of Stable-Baselines3 whose observations are one array or one number.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from tidemill import replay


class ServedReplayBuffer(ReplayBuffer):  # type: ignore[misc] # it has no types
    """Transitions in a table of a replay server; one of the same settings continues with what is there.

    `model.save_replay_buffer` saves where the table is, and the transitions stay there.
    """

    def __init__(
        self,
        buffer_size: int,
        *arguments: Any,  # noqa: ANN401 - as Stable-Baselines3 passes them on
        address: str,
        table: str,
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **named: Any,  # noqa: ANN401
    ) -> None:
        """Open a writer; the dataset follows when the size of a batch is known."""
        BaseBuffer.__init__(self, buffer_size, *arguments, n_envs=n_envs, **named)  # creates no arrays
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage is True, must be False: the server stores each step as it comes")
        self.handle_timeout_termination = handle_timeout_termination  # which `load_replay_buffer` asks for
        observation = np.zeros(self.obs_shape, self.observation_space.dtype)
        example = {
            "observations": observation,
            "next_observations": observation,
            "actions": np.zeros(self.action_dim, self._maybe_cast_dtype(self.action_space.dtype)),
            "rewards": 0.0,
            "dones": 0.0,
        }
        uniform = replay.SelectorConfig(replay.SelectorKind.UNIFORM)
        self._table = replay.TableConfig(table, replay.signature_like(example), uniform, buffer_size, max_item_steps=1)
        self._address, self._dataset_size = address, 0
        self._dataset: replay.ReplayDataset | None = None
        self._writer = replay.ReplayWriter(address, self._table, num_envs=n_envs, windows=replay.ItemWindow(length=1))

    def add(
        self,
        obs: np.ndarray[Any, Any],
        next_obs: np.ndarray[Any, Any],
        action: np.ndarray[Any, Any],
        reward: np.ndarray[Any, Any],
        done: np.ndarray[Any, Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Write a transition of every environment, each [N, ...]; one that was cut off by time does not end."""
        handles = self.handle_timeout_termination
        timeouts = np.array([handles and info.get("TimeLimit.truncated", False) for info in infos])
        step = {
            "observations": np.reshape(obs, (self.n_envs, *self.obs_shape)),
            "next_observations": np.reshape(next_obs, (self.n_envs, *self.obs_shape)),
            "actions": np.reshape(action, (self.n_envs, self.action_dim)),
            "rewards": reward,
            "dones": done * ~timeouts,
        }
        self._writer.append(step)

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:  # noqa: ANN401
        """Return transitions that the server draws, normalised if the environment does so."""
        return self._get_samples(np.arange(batch_size), env)

    def _get_samples(self, batch_inds: np.ndarray[Any, Any], env: Any = None) -> ReplayBufferSamples:  # noqa: ANN401
        batch_size = len(batch_inds)
        if self._dataset is None or self._dataset_size != batch_size:
            self._writer.flush(timeout_s=60.0)  # so that there is something to sample
            if self._dataset is not None:
                self._dataset.close()
            self._dataset = replay.ReplayDataset(
                self._address, self._table, batch_size, timeout_s=60.0, batches_per_sample=8
            )
            self._dataset_size = batch_size
        batch = {name: column[:, 0] for name, column in next(self._dataset).columns.items()}
        return ReplayBufferSamples(
            observations=self.to_torch(self._normalize_obs(batch["observations"], env)),
            actions=self.to_torch(batch["actions"]),
            next_observations=self.to_torch(self._normalize_obs(batch["next_observations"], env)),
            dones=self.to_torch(batch["dones"][:, None]),
            rewards=self.to_torch(self._normalize_reward(batch["rewards"][:, None], env)),
        )

    def size(self) -> int:
        """Return how many steps of every environment the table holds."""
        self._writer.flush(timeout_s=60.0)
        with replay.ReplayClient(self._address) as client:
            return client.describe_table(self._table.name).items // int(self.n_envs)

    def __getstate__(self) -> dict[str, Any]:
        """The saved state: the table's address and name. Both clients connect again when it is loaded."""
        self._writer.flush(timeout_s=60.0)
        return self.__dict__

    def close(self) -> None:
        """Flush, and close both clients."""
        self._writer.flush(timeout_s=60.0)
        self._writer.close()
        if self._dataset is not None:
            self._dataset.close()


def main() -> None:
    """Train for a moment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", default="127.0.0.1:7401", help="address of the replay server")
    parser.add_argument("--steps", type=int, default=50_000, help="agent decisions")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_starts=200,
        replay_buffer_class=ServedReplayBuffer,
        replay_buffer_kwargs={"address": options.replay, "table": "sb3"},
        device="cpu",
        seed=0,
    )
    model.learn(options.steps)
    model.replay_buffer.close()
    print(f"{model.num_timesteps} steps, {model._n_updates} updates")


if __name__ == "__main__":
    main()
