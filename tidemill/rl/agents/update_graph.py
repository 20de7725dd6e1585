"""A whole update as a CUDA graph: hundreds of small kernels that the host launches in one call.

A recording repeats the same kernels, on the same memory, with the numbers that Python gave them when it was made. An
update that is recorded therefore
- takes tensors from its batch, which is copied into memory of the recording, and from its agent, which it changes in
  place, and from nowhere else; a network that puts another tensor in place of a buffer is refused;
- never waits for the device;
- decides nothing in Python but by what its caller calls its `kind`: each kind has a separate recording.

Where several processes make an update together, it is recorded in parts: each part ends where gradients are averaged.
The parts are repeated one after the other, and between them the ranks add up one flat tensor of gradients as usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tidemill.logger import LateLogger
from tidemill.rl.agents.interface import Update
from tidemill.rl.optimizers import LearningRateDecay
from tidemill.rl.process_group import ProcessGroup, flat_mean
from tidemill.rl.train_state import TrainState

RunUpdate = Callable[[Mapping[str, Tensor], Tensor], Update]
"""Makes an update of a batch, and importance weights [B], without counting it."""

RunKind = Callable[[Mapping[str, Tensor], Tensor, Hashable], Update]
"""The same, given its kind, with the step sizes that are due; it is counted."""

_EAGER_FIRST = 2
"""Updates of a kind before it is recorded: kernels are loaded and chosen, and work memory allocated, at their first."""

_log = LateLogger()


class Recorder(Protocol):
    """Makes recordings on one device."""

    def warm_up(self, run: RunUpdate, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make an update where the device records, so that whatever it needs once is there."""

    def part(self) -> AbstractContextManager[Callable[[], object]]:
        """Record what is done inside of the context, which is computed once by the end of it.

        Returns:
            A context with what repeats it on the same memory.
        """


class CudaRecorder:
    """Records CUDA graphs, on a separate stream and in memory that they share; one is repeated at a time."""

    def __init__(self, device: torch.device, noise: torch.Generator | None) -> None:
        """Take the device, and the generator that updates draw from, if they do; its state moves on at each repeat."""
        self._device, self._noise = device, noise
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: RunUpdate, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """See `Recorder`."""
        training = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            update = run(batch, weight)
        training.wait_stream(self._stream)
        for tensor in (update.priority, *update.metrics.values()):
            tensor.record_stream(training)
        return update

    @contextmanager
    def part(self) -> Iterator[Callable[[], object]]:
        """See `Recorder`."""
        graph = torch.cuda.CUDAGraph()
        if self._noise is not None:
            graph.register_generator_state(self._noise)
        # other threads upload batches meanwhile, which an error mode of the whole process would forbid
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            yield graph.replay
        graph.replay()  # nothing has been computed while it was recorded


class _Recording:
    """One recorded update; while it is recorded also the `ProcessGroup` in which that update averages gradients."""

    def __init__(self, recorder: Recorder, group: ProcessGroup) -> None:
        """Take what records the parts, and the ranks that exchange gradients between them."""
        self.index = group.index
        self.size = group.size
        self._recorder = recorder
        self._group = group
        self._steps: list[Callable[[], object]] = []
        self._part = ExitStack()

    @contextmanager
    def made(self) -> Iterator[None]:
        """Record what is done inside of the context."""
        with self._part:
            self._begin_part()
            yield

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each gradient over all ranks."""
        return list(gradients) if self.size == 1 else flat_mean(gradients, self.size, self.add_up)

    def add_up(self, flat: Tensor) -> None:
        """End a part, add up over all ranks what it leaves in `flat`, and begin the next part."""
        self._part.close()
        exchange = partial(self._group.add_up, flat)
        exchange()
        self._steps.append(exchange)
        self._begin_part()

    def repeat(self) -> None:
        """Make the update again, on the same memory."""
        for step in self._steps:
            step()

    def _begin_part(self) -> None:
        self._steps.append(self._part.enter_context(self._recorder.part()))


class RecordedUpdates:
    """Makes updates: the first of each kind as they are, then one that is recorded, then that one again and again.

    An update of a batch of other shapes than the first one is made as it is.
    """

    def __init__(self, run: RunUpdate, state: TrainState, recorder: Recorder) -> None:
        """Take what makes an update, the state that it changes, and what records it."""
        self._run, self._state, self._recorder = run, state, recorder
        self._made: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, tuple[_Recording, Update]] = {}
        self._batch: dict[str, Tensor] = {}
        self._weight: Tensor | None = None

    def __call__(self, batch: Mapping[str, Tensor], weight: Tensor, kind: Hashable) -> Update:
        """Make an update of a kind; what is reported stays as it is when the next one is made."""
        if not self._can_record(batch, weight):
            return self._run(batch, weight)
        self._made[kind] += 1
        if self._made[kind] <= _EAGER_FIRST:
            return self._recorder.warm_up(self._run, batch, weight)
        weight = self._copy_in(batch, weight)
        if kind in self._recordings:
            recording, update = self._recordings[kind]
            recording.repeat()
        else:
            recording, update = self._record(weight)
            self._recordings[kind] = recording, update
        return _copied(update)

    def _record(self, weight: Tensor) -> tuple[_Recording, Update]:
        """Make and record an update; return also what it reported, whose memory each repetition writes."""
        group = self._state.group
        recording = _Recording(self._recorder, group)
        before = self._tensors()
        self._state.group = recording
        try:
            with recording.made():
                update = self._run(self._batch, weight)
        finally:
            self._state.group = group
        for name, tensor in self._tensors().items():
            if name not in before or tensor.data_ptr() != before[name].data_ptr():
                raise RuntimeError(
                    f"an update put another tensor in place of {name!r}, which a recording would not read: "
                    f"change it in place, as by copy_ or lerp_"
                )
        return recording, update

    def _tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name; holding them keeps their memory from others."""
        return {
            f"{network}.{name}": tensor.detach()
            for network, module in self._state.networks.items()
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }

    def _can_record(self, batch: Mapping[str, Tensor], weight: Tensor) -> bool:
        if self._weight is None:
            return True
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in self._batch.items()}
        same = shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in batch.items()}
        return same and weight.shape == self._weight.shape

    def _copy_in(self, batch: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        """Copy a batch to where recordings read it; return where they read the weights."""
        if self._weight is None:
            self._batch = {name: tensor.clone() for name, tensor in batch.items()}
            self._weight = weight.clone()
            return self._weight
        places = [*self._batch.values(), self._weight]
        torch._foreach_copy_(places, [*(batch[name] for name in self._batch), weight])  # one call for all of them
        return self._weight


def _copied(update: Update) -> Update:
    priority, *metrics = torch._foreach_mul([update.priority, *update.metrics.values()], 1.0)  # one kernel for all
    return Update(priority, dict(zip(update.metrics, metrics, strict=True)))


def recorded(run: RunUpdate, how: str, device: torch.device, state: TrainState, decay: LearningRateDecay) -> RunKind:
    """Return an update that is recorded if `how` is `cuda-graphs` and the device can, or made as it is.

    Args:
        run: Makes an update, as this module's docstring says, and does not count it.
        how: The setting `agent.compile`.
        device: Where the agent is.
        state: Of the agent; counts its updates.
        decay: Sets the step sizes of each update.
    """
    recording = None
    if how == "cuda-graphs" and (recorder := recorder_on(device, state.noise)) is not None:
        recording = RecordedUpdates(run, state, recorder)
    elif how == "cuda-graphs":
        _log.warning("agent.compile is cuda-graphs, which needs a GPU; running updates without", device=str(device))

    def counted(batch: Mapping[str, Tensor], weight: Tensor, kind: Hashable) -> Update:
        decay.at(state.updates)
        update = run(batch, weight) if recording is None else recording(batch, weight, kind)
        state.updates += 1
        return update

    return counted


def recorder_on(device: torch.device, noise: torch.Generator | None) -> Recorder | None:
    """Return the recorder of updates on a device; None where none works. `noise` that is elsewhere is not recorded."""
    if device.type != "cuda":
        return None
    return CudaRecorder(device, noise if noise is not None and noise.device.type == "cuda" else None)
