"""Cases of the learner benchmark: networks and batches of known papers, on made-up transitions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidemill.config.load import write_document
from tidemill.config.sections import RunConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.table import TableSettings
from tidemill.envs.settings import EnvSettings
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig


@dataclass(frozen=True)
class Case:
    """One network with one batch size."""

    name: str
    agent: AgentConfig
    env_id: str

    def config(self) -> RunConfig:
        """Return the settings of a run: the table draws by priority for images, evenly for vectors."""
        is_atari = self.env_id.startswith("ALE/")
        table = TableSettings(sampler="prioritized" if is_atari else "uniform", min_size=1_000)
        learner = LearnerSettings(updates_per_env_step=0.0, checkpoint_every_s=0.0)
        return RunConfig(env=EnvSettings(id=self.env_id), agent=self.agent, table=table, learner=learner)

    def write(self, folder: Path) -> str:
        """Write the settings as a file that every service reads; return its path."""
        path = folder / f"{self.name}.yaml"
        write_document(self.config(), path)
        return str(path)


def _dqn(batch_size: int) -> Case:
    agent = DQNConfig(network="nature", hidden_sizes=(512,), dueling=True, double=True, n_step=3, batch_size=batch_size)
    return Case(f"nature_dueling_dqn_{batch_size}", agent, "ALE/Pong-v5")


def _sac(*sizes: int, precision: Literal["float32", "bfloat16"] = "float32") -> Case:
    agent = SACConfig(hidden_sizes=sizes, batch_size=256, update_precision=precision)
    name = "sac" if precision == "float32" else f"sac_{precision}"
    return Case(f"{name}_{'_'.join(map(str, sizes))}_256", agent, "LunarLanderContinuous-v3")


_SAC = (_sac(256, 256), _sac(400, 300), _sac(256, 256, precision="bfloat16"), _sac(400, 300, precision="bfloat16"))
CASES = {case.name: case for case in (_dqn(32), _dqn(256), _dqn(512), *_SAC)}
"""By name: network, number format unless float32, layers and the batch size last."""
