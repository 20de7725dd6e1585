"""Updates of the sizes that are trained on GPUs, whose launches are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tidemill.rehearsal.pretended_cuda import PretendedCuda
from tidemill.rehearsal.updates import recorded, rehearse_updates
from tidemill.rl.agents.capture_trial import can_record
from tidemill.rl.process_group import SingleProcess, flat_mean
from tidemill.rl.settings.registry import AgentConfig, config_class
from tidemill.types import EnvSpec

_ATARI = EnvSpec((84, 84), "uint8", frame_stack=4, num_actions=6)
_WALKER = EnvSpec((17,), "float32", action_shape=(6,))
_BTR = {
    "network": "impala",
    "network_settings": {"width": 2, "spectral_norm": True, "pool": 6},
    "hidden_sizes": (512,),
    "noisy": True,
    "double": False,
    "distribution": "iqn",
    "atoms": 8,
    "munchausen_scale": 0.9,
    "exploration": "none",
}
_RAINBOW = {"noisy": True, "distribution": "c51", "exploration": "none"}
_R2D2 = {"network": "nature", "burn_in": 40, "unroll": 40, "period": 40, "n_step": 5}
_LSTM = {"lstm_size": 128, "burn_in": 16, "unroll": 48}
_RESNET = {"network": "impala", "hidden_sizes": (), "encoder_sizes": (256,), "unroll": 20}
_NATURE = {"network": "nature", "hidden_sizes": (), "encoder_sizes": (512,)}

_SIZES: dict[str, tuple[str, EnvSpec, int, dict[str, Any]]] = {
    "dqn: Nature network, dueling, double, 512 items": ("dqn", _ATARI, 512, {}),
    "dqn: Rainbow, C51 with noise, 512 items": ("dqn", _ATARI, 512, _RAINBOW),
    "dqn: BTR, 256 items": ("dqn", _ATARI, 256, _BTR),
    "r2d2: Nature network, 40 + 40 steps, 64 items": ("r2d2", _ATARI, 64, _R2D2),
    "impala: ResNet, 20 steps, 256 items": ("impala", _ATARI, 256, _RESNET),
    "ppo: Nature network, 16 steps, 64 items": ("ppo", _ATARI, 64, _NATURE | {"unroll": 16}),
    "pqn: Nature network, 32 steps, 128 items": ("pqn", _ATARI, 128, {"network": "nature_group_norm", "unroll": 32}),
    "sac: 256 x 256, 256 items": ("sac", _WALKER, 256, {}),
    "sac: TQC, 256 items": ("sac", _WALKER, 256, {"critics": 5, "quantiles": 25}),
    "sac: CrossQ, 256 items": ("sac", _WALKER, 256, {"crossq": True}),
    "sac: LSTM, 16 + 48 steps, 64 items": ("sac", _WALKER, 64, _LSTM),
    "sac_discrete: Nature network, 64 items": ("sac_discrete", _ATARI, 64, {"network": "nature"}),
    "ddpg: 256 items": ("ddpg", _WALKER, 256, {}),
    "td3: 256 items": ("td3", _WALKER, 256, {}),
    "td3: LSTM, 16 + 48 steps, 64 items": ("td3", _WALKER, 64, _LSTM),
    "d4pg: 256 items": ("d4pg", _WALKER, 256, {}),
}


def sizes() -> dict[str, tuple[AgentConfig, EnvSpec]]:
    """Return settings and environments by what they are called."""
    found = {}
    for name, (algorithm, env_spec, items, settings) in _SIZES.items():
        found[name] = config_class(algorithm)(**settings, batch_size=items), env_spec  # type: ignore[call-arg]
    return found


class OneOfTwo(SingleProcess):
    """A rank whose other one adds nothing."""

    size = 2

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return half of the gradients."""
        return flat_mean(gradients, self.size, self.add_up)


def launches(cuda: PretendedCuda, config: AgentConfig, env_spec: EnvSpec) -> dict[str, int]:
    """Return the launches of an update by how it is made: those of the kind that has more, once all is there.

    Args:
        cuda: The GPUs.
        config: The settings.
        env_spec: Shapes of the environment.

    Returns:
        `eager` and `eager, of several ranks`; where updates can be recorded also `graphs` and `graphs, of several
        ranks`.
    """
    found = {}
    for suffix, group in (("", None), (", of several ranks", OneOfTwo())):
        if not can_record(config):
            found[f"eager{suffix}"] = rehearse_updates(cuda, config, env_spec, group=group).launches[-1]
            continue
        seen = rehearse_updates(cuda, recorded(config), env_spec, group=group).launches
        found |= {f"eager{suffix}": max(seen[1:3]), f"graphs{suffix}": max(seen[-2:])}
    return found
