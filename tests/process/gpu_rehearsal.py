"""Rehearses GPUs in a separate process, and writes what it saw, a line of JSON for each case.

python -m tests.process.gpu_rehearsal PART [PART ...]
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from tidemill.rehearsal import library

library.load()
warnings.simplefilter("ignore")  # torch warns of a CPU build that is asked about CUDA

import numpy as np  # noqa: E402
import structlog  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes  # noqa: E402

from benchmarks.gpu_sizes import launches, sizes  # noqa: E402
from tests.support.batches import DISTINCT_CASES  # noqa: E402
from tidemill.config.load import from_document  # noqa: E402
from tidemill.config.sections import InferenceConfig, LearnerConfig  # noqa: E402
from tidemill.devices import named_device  # noqa: E402
from tidemill.envs.make import spec_of  # noqa: E402
from tidemill.errors import TidemillError  # noqa: E402
from tidemill.rehearsal.pretended_cuda import PretendedCuda  # noqa: E402
from tidemill.rehearsal.updates import lines, recorded, rehearse_updates  # noqa: E402
from tidemill.replay import codec  # noqa: E402
from tidemill.replay.batch import Blocks  # noqa: E402
from tidemill.rl import optimizers  # noqa: E402
from tidemill.rl.agents import dqn, q_learning, sac  # noqa: E402
from tidemill.rl.agents.build import build_agent  # noqa: E402
from tidemill.rl.agents.capture_trial import can_record  # noqa: E402
from tidemill.rl.agents.dqn import gather_action  # noqa: E402
from tidemill.rl.process_group import draw_normal  # noqa: E402
from tidemill.services.inference.__main__ import make_policy  # noqa: E402
from tidemill.services.learner import learner as learner_module  # noqa: E402
from tidemill.services.learner.data.device import DevicePrefetcher  # noqa: E402
from tidemill.services.learner.data.device_rows import DeviceRows, StreamQueue  # noqa: E402
from tidemill.services.learner.distributed.learner_group import RankInfo  # noqa: E402
from tidemill.types import Codec, ColumnSpec  # noqa: E402

ITEMS = 6
"""Of a small batch."""
GPUS = 8

Case = tuple[str, object]
CUDA = PretendedCuda(GPUS)


def updates() -> Iterator[Case]:
    """Yield what is to be said of each case's updates, eager and recorded, and their launches."""
    for name, (config, env_spec) in DISTINCT_CASES.items():
        ways = {"eager": config} | ({"graphs": recorded(config)} if can_record(config) else {})
        for way, settings in ways.items():
            seen = rehearse_updates(CUDA, settings, env_spec, items=ITEMS)
            yield (
                f"{name}, {way}",
                {"said": lines(name, seen), "launches": seen.launches, "undetermined": sorted(seen.undetermined)},
            )


def budget() -> Iterator[Case]:
    """Yield the launches of updates of the sizes that are trained."""
    for name, (config, env_spec) in sizes().items():
        yield name, launches(CUDA, config, env_spec)


def starts() -> Iterator[Case]:
    """Yield the device that a learner's rank, or an inference service, takes, by how many GPUs and ranks there are."""
    for gpus, ranks in ((1, 1), (8, 1), (8, 8)):
        for name in ("auto", "cuda", "cuda:0", f"cuda:{gpus - 1}", "cpu"):
            for rank in {0, ranks - 1}:
                place = RankInfo(rank, ranks, rank)
                yield f"learner {rank} of {ranks} on {gpus}, {name}", _device_of(gpus, partial(_learner, name, place))
            if ranks == 1:
                yield f"inference on {gpus}, {name}", _device_of(gpus, partial(_inference, name))


def _device_of(gpus: int, start: Callable[[], str]) -> str:
    CUDA.gpus = gpus
    CUDA.contexts.clear()
    try:
        with CUDA.rehearsing():
            device = start()
    except TidemillError as error:
        return type(error).__name__
    finally:
        CUDA.gpus = GPUS
    opened = sorted({index for indices in CUDA.contexts.values() for index in indices})
    return f"{device}, opened {opened}" if opened else device


def _learner(device: str, rank: RankInfo) -> str:
    document = {"env": {"id": "CartPole-v1"}, "learner": {"device": device}, "agent": {"algorithm": "dqn"}}
    config = from_document(LearnerConfig, document | {"agent": {"algorithm": "dqn", "network": "mlp"}})
    with (
        mock.patch.object(learner_module, "watch_gpu"),  # registers metrics once a process
        mock.patch.object(learner_module, "with_chosen_compile", lambda agent, *_: agent),  # asks a separate process
    ):
        return str(learner_module.Learner(config, threading.Event(), rank)._build().device)


def _inference(device: str) -> str:
    document = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn", "network": "mlp"}}
    config = from_document(InferenceConfig, document | {"inference": {"device": device}})
    found = named_device("inference.device", config.inference.device)
    make_policy(config, spec_of(config.env), found)
    return str(found)


def copies() -> Iterator[Case]:
    """Yield which GPUs the threads of two ranks open that copy batches and rows, and what they wait for."""
    columns = (ColumnSpec("observation", "uint8", (84, 84), Codec.LZ4),)
    block = codec.encode(columns, {"observation": np.ones((16, 84, 84), np.uint8)})[0]
    chunks = [Blocks(block * 2, np.full(2, len(block)))]
    for index in (0, 3):
        device = torch.device("cuda", index)
        with CUDA.rehearsing() as watch:
            CUDA.set_device(device)
            with _disable_current_modes():  # the host's part is real
                rows = DeviceRows(columns, 256, device, 16, RehearsedQueue(device))
            prefetcher = DevicePrefetcher(device, rows)
            numbers = {"observation": np.zeros((8, 4), np.int64), "action": np.zeros(8, np.int64)}
            work: dict[str, Callable[[], object]] = {
                "receive": partial(rows.keep, columns, chunks, np.full(2, 16), np.array([0, 16])),
                "decode": partial(_rehearsed, partial(prefetcher.start, numbers, ["observation"])),
            }
            watch.reset()
            CUDA.contexts.clear()
            for name, task in work.items():
                thread = threading.Thread(target=task, name=name)
                thread.start()
                thread.join()
            said = sorted(map(str, watch.notes))
        opened = {name: sorted(found) for name, found in CUDA.contexts.items()}
        yield f"rank of cuda:{index}", {"opened": opened, "said": said}


class RehearsedQueue(StreamQueue):
    """A CUDA stream whose work is rehearsed; what comes before it is done."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory of a pretended GPU."""
        with CUDA.rehearsing():
            return super().empty(shape, dtype)

    def submit(self, work: Callable[[], object]) -> None:
        """Rehearse the work."""
        with CUDA.rehearsing():
            super().submit(work)


def _rehearsed(task: Callable[[], object]) -> None:
    with CUDA.rehearsing():
        task()


def resumes() -> Iterator[Case]:
    """Yield the errors of agents that load a state of another device."""
    for name, (config, env_spec) in DISTINCT_CASES.items():
        with CUDA.rehearsing():
            agents = {device: build_agent(config, env_spec, device, 1) for device in ("cpu", "cuda:0", "cuda:7")}
            states = {device: agents[device].state_dict() for device in ("cpu", "cuda:0")}
        for source, target in (("cpu", "cuda:7"), ("cuda:0", "cpu"), ("cuda:0", "cuda:7")):
            stored = _stored(states[source])
            try:
                with CUDA.rehearsing():
                    agents[target].load_state_dict(stored)
            except RuntimeError as error:
                yield f"{name}, {source} to {target}", str(error)
    yield "all", ""


def _stored(state: Any) -> Any:  # noqa: ANN401 - a nest of tensors and numbers
    """Return a state as a checkpoint holds it: 0 where there are no numbers, so everywhere but in generators."""
    if isinstance(state, dict):
        return {name: _stored(part) for name, part in state.items()}
    return torch.zeros(state.shape, dtype=state.dtype) if isinstance(state, FakeTensor) else state


def regressions() -> Iterator[Case]:
    """Yield what is said of updates with a fault that was put in."""
    clip, step = optimizers.clip_, optimizers.Adam.step
    contiguous = Tensor.contiguous

    def of_other_strides(self: optimizers.Adam, gradients: list[Tensor]) -> None:
        turned = [contiguous(each.mT).mT if each.ndim > 1 else each for each in gradients]
        with mock.patch.object(Tensor, "contiguous", lambda tensor: tensor):
            step(self, turned)

    def waits(gradients: list[Tensor], most: float) -> Tensor:
        return clip(gradients, most) if float(optimizers.global_norm(gradients)) > 0 else torch.zeros(())

    faults: dict[str, tuple[str, object, str, object]] = {
        "item() in clipping": ("dqn", q_learning, "clip_", waits),
        "a literal on the device": (
            "dqn",
            q_learning,
            "clip_",
            lambda g, m: clip(g, m) + torch.tensor(0.0, device=g[0].device),
        ),
        "a scalar of the host": ("dqn", q_learning, "clip_", lambda g, m: clip(g, m) + torch.zeros(())),
        "an index of the host": ("dqn", dqn, "gather_action", lambda o, a: o[torch.arange(len(o)), a]),
        "a list as index": ("dqn", dqn, "gather_action", lambda o, a: o[list(range(len(o))), a]),
        "a mask as index": ("dqn", dqn, "gather_action", lambda o, a: gather_action(o, a)[a >= 0]),
        "noise of the host": ("sac", sac, "draw_normal", lambda s, g, rng, device, dim=0: torch.randn(s).to(device)),
        "a generator that is not registered": (
            "sac",
            sac,
            "draw_normal",
            lambda s, g, rng, device, dim=0: draw_normal(s, g, torch.Generator(device), device, dim),
        ),
        "gradients of other strides": ("dqn", optimizers.Adam, "step", of_other_strides),
    }
    for what, (name, owner, attribute, fault) in faults.items():
        config, env_spec = DISTINCT_CASES[name]
        with mock.patch.object(owner, attribute, fault):
            yield what, lines(name, rehearse_updates(CUDA, recorded(config), env_spec, items=ITEMS))


PARTS: dict[str, Callable[[], Iterator[Case]]] = {
    "updates": updates,
    "budget": budget,
    "copies": copies,
    "starts": starts,
    "regressions": regressions,
    "resumes": resumes,
}


def main() -> None:
    """Write the cases of the parts asked for; one that raises is a case as well."""
    torch.set_num_threads(1)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # the other stream has the cases
    for part in sys.argv[1:]:
        try:
            for name, seen in PARTS[part]():
                print(json.dumps([part, name, seen]), flush=True)
        except Exception:
            print(json.dumps([part, "raised", traceback.format_exc()]), flush=True)


if __name__ == "__main__":
    main()
