"""What a CUDA graph does, done by the CPU: operations are repeated on the same memory with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tidemill.rl.agents.interface import Update
from tidemill.rl.agents.update_graph import RunUpdate


@dataclass(frozen=True)
class Operation:
    """One operation, and the tensors it was given and returned."""

    run: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    returned: object

    @property
    def _is_view(self) -> bool:
        aliases = [each.alias_info for each in self.run._schema.returns]
        return any(alias is not None and not alias.is_write for alias in aliases)

    def repeat(self) -> None:
        """Run it again; what it returned is written where it was. A view sees what its base's memory holds."""
        if self._is_view:
            return
        again = self.run(*self.args, **self.kwargs)
        for old, new in zip(tree_leaves(self.returned), tree_leaves(again), strict=True):
            if isinstance(old, Tensor) and old is not new:
                old.copy_(new)


class _Recording(TorchDispatchMode):
    """Notes every operation, those of backward passes too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Run and note an operation."""
        assert func is not torch.ops.aten.lift_fresh.default, "a tensor made of Python's numbers is copied to the GPU"
        returned = func(*args, **(kwargs or {}))
        self.operations.append(Operation(func, args, kwargs or {}, returned))
        return returned

    def repeat(self) -> None:
        """Run all of them again."""
        with torch.no_grad():
            for operation in self.operations:
                operation.repeat()


class OperationRecorder:
    """A `tidemill.rl.agents.update_graph.Recorder` for the CPU.

    Attributes:
        recordings: How many parts there are.
        repeats: How often one has been repeated.
    """

    def __init__(self) -> None:
        self.recordings = self.repeats = 0

    def warm_up(self, run: RunUpdate, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make an update."""
        return run(batch, weight)

    @contextmanager
    def part(self) -> Iterator[Callable[[], object]]:
        """Do what is done inside and note its operations."""
        self.recordings += 1
        recording = _Recording()

        def repeat() -> None:
            self.repeats += 1
            recording.repeat()

        with recording:
            yield repeat
