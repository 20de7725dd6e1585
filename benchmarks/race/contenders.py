"""Contenders of the race: their commands, and their Python environments, each made when it is first needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.race.tasks import Task
from benchmarks.race.tidemill_run import RUN, config_of, curve_of
from tidemill.installation import versions

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build" / "race"
"""Each peer's environment is a folder here."""
Document = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """Another program: a module of `benchmarks.race.peers`, and what it needs installed."""

    name: str
    title: str
    shape: str
    """Its processes and their threads."""
    algorithms: tuple[str, ...] = ("ppo", "dqn", "sac")
    plays_atari: bool = False

    @property
    def requirements(self) -> Path:
        """Pins of the packages that it imports besides the project's own; none if there is no such file."""
        return ROOT / "requirements" / f"race_{self.name}.txt"

    def takes(self, task: Task) -> bool:
        """Whether it trains on a task."""
        return task.algorithm in self.algorithms and (self.plays_atari or not task.is_atari)

    def train_command(self, task: Task, seed: int, folder: Path) -> list[str]:
        """Return the command that trains it into a folder."""
        return [*self._module(), "train", task.name, str(seed), str(folder), "--decisions", str(task.decisions)]

    def test_command(self, task: Task, seed: int, folder: Path) -> list[str]:
        """Return the command that plays the fresh episodes with what it has trained."""
        return [*self._module(), "test", task.name, str(seed), str(folder)]

    def read(self, task: Task, folder: Path, started_s: float) -> Document:  # noqa: ARG002 - its peers need them
        """Return curve, decisions, updates and versions of a training that has ended."""
        lines = (folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()
        return {"curve": [json.loads(line) for line in lines], **json.loads((folder / "peer.json").read_text("utf-8"))}

    def install(self) -> None:
        """Make the environment, unless it has the packages of today's pins.

        It finds the project's own packages, torch among them, behind its own: both sides multiply with the same torch.
        """
        folder, stamp = ENVIRONMENTS / self.name, ENVIRONMENTS / self.name / "installed.txt"
        pins = self.requirements.read_text(encoding="utf-8") if self.requirements.exists() else ""
        if stamp.exists() and stamp.read_text(encoding="utf-8") == pins:
            return
        print(f"race: installing {self.title} into {folder.relative_to(ROOT)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        if pins:
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
            subprocess.run([*pip, "--no-deps", "--requirement", str(self.requirements)], check=True, cwd=ROOT)
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        stamp.write_text(pins, encoding="utf-8")

    def warm_up_command(self) -> list[str]:
        """Return a command that imports what a training does, so that none of them compiles modules."""
        return [*self._module(), "--help"]

    def _module(self) -> list[str]:
        return [str(ENVIRONMENTS / self.name / "bin" / "python"), "-m", f"benchmarks.race.peers.{self.name}"]


@dataclass(frozen=True)
class Tidemill(Peer):
    """The whole cluster, as `tidemill train` starts it."""

    def train_command(self, task: Task, seed: int, folder: Path) -> list[str]:
        """Return the command that trains it into a folder."""
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(config_of(task), sort_keys=False), encoding="utf-8")
        tidemill = str(Path(sys.executable).with_name("tidemill"))
        return [tidemill, "train", "--config", str(config), "--run.root", str(folder), "--run.seed", str(seed)]

    def read(self, task: Task, folder: Path, started_s: float) -> Document:
        """Return curve, decisions, updates and versions of a training that has ended."""
        curve = curve_of(folder / RUN, task, started_s)
        last = curve[-1]
        found = {name: number for name, number in versions().items() if name in ("tidemill", "torch", "gymnasium")}
        return {"curve": curve, "decisions": last["decisions"], "updates": last["updates"], "versions": found}

    def install(self) -> None:
        """Do nothing: this program is in its environment."""

    def warm_up_command(self) -> list[str]:
        """Return a command that imports what a training does, so that none of them compiles modules."""
        services = ("launcher", "replay", "paramserver", "learner", "actor", "evaluator")
        imports = [f"import tidemill.services.{name}.__main__" for name in services]
        imports += ["import tidemill.services.evaluator.curve", "import tidemill.services.launcher.commands.train"]
        return [sys.executable, "-c", "; ".join([*imports, "import tidemill.rl.agents.build, torch._dynamo"])]

    def _module(self) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.race.peers.{self.name}"]


_ONE = "1 process, 1 thread"
_ONE_OR_TWO = f"{_ONE}, 2 with images"
_CONTENDERS: Sequence[Peer] = (
    Tidemill(
        "tidemill",
        "Tidemill",
        "6 processes, 1 thread of torch in each that computes, 2 with images in the learner and in PPO's actor",
        plays_atari=True,
    ),
    Peer("sb3", "Stable-Baselines3", _ONE_OR_TWO, plays_atari=True),
    Peer("cleanrl", "CleanRL's way", _ONE_OR_TWO, plays_atari=True),
    Peer("torchrl", "TorchRL", _ONE),
    Peer("rllib", "RLlib", "Ray, env runner and learner in the driver"),
    Peer(
        "sample_factory",
        "Sample Factory",
        "a process each to sample, infer, batch and learn; constant step size",
        algorithms=("ppo",),
    ),
)
CONTENDERS = {each.name: each for each in _CONTENDERS}
