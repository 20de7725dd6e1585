"""Sees every operation of an update, and notes what it would do on a GPU."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_DEVICE_OF = torch.ops.prim.device.default
"""Nearly every second call: torch asks pretended tensors where they are."""
_WAITING = {
    _ATEN._local_scalar_dense.default,
    _ATEN.item.default,  # in inference mode, which does not take it apart
    _ATEN.nonzero.default,
    _ATEN.masked_select.default,
    _ATEN.equal.default,
    _ATEN._unique2.default,
    _ATEN.unique_dim.default,
    _ATEN.unique_consecutive.default,
    _ATEN.bincount.default,
    _ATEN.multinomial.default,
    _ATEN.is_nonzero.default,
    _ATEN.repeat_interleave.Tensor,
    _ATEN.histc.default,
}
"""Operations that give the host a number or a shape that only the device knows."""

UNDETERMINED = {
    *("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward", "_adaptive_avg_pool2d_backward"),
    *("fractional_max_pool2d_backward", "max_unpool2d", "upsample_linear1d_backward", "upsample_bilinear2d_backward"),
    *("upsample_bicubic2d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward", "nll_loss_forward"),
    *("nll_loss2d_forward", "_ctc_loss_backward", "put_", "histc", "bincount", "kthvalue", "grid_sampler_2d_backward"),
    *("cumsum", "_cumsum"),
}
"""Operations that torch refuses on a GPU where they must be deterministic (`torch.use_deterministic_algorithms`)."""

# Operations of these names launch no kernel.
_VIEWS = {
    *("view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice"),
    *("select", "split", "split_with_sizes", "chunk", "as_strided", "detach", "alias", "unbind", "unfold", "narrow"),
    *("diagonal", "lift_fresh", "_reshape_alias", "prim::device", "empty", "empty_like", "empty_strided", "new_empty"),
    *("new_empty_strided", "movedim", "flatten", "view_as", "expand_as", "set_", "resize_", "is_pinned", "real"),
    *("_pin_memory", "_conj"),
}
_TENSORS_A_LAUNCH = 30
"""How many tensors one kernel of torch's multi-tensor operations takes, about."""

_PINNED = "_pretended_pinned"
_OWN_FOLDER = str(Path(__file__).parent)

Kind = Literal["waits", "host number", "unregistered generator", "refused"]


class Note(NamedTuple):
    """Something that an update should not do on a GPU.

    Attributes:
        kind: `waits`: the host waits for the device. `host number`: a tensor of the host takes part, whose number a
            CUDA graph would keep. `unregistered generator`: a graph would draw the same numbers at each repeat.
            `refused`: CUDA's kernel of the operation takes no such arguments.
        operation: Its name.
        where: File and line that called it, as agents/dqn/agent.py:110.
        detail: More about it; may be empty.
    """

    kind: Kind
    operation: str
    where: str
    detail: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.kind}: {self.operation} at {self.where}" + (f" ({self.detail})" if self.detail else "")


def pinned(tensor: Tensor) -> Tensor:
    """Mark a tensor of the host as in pinned memory, and return it."""
    setattr(tensor, _PINNED, True)
    return tensor


class Watch(TorchDispatchMode):
    """Notes what operations would do on a GPU, and counts the kernels that they would launch.

    Attributes:
        notes: What was noted, and how often.
        launches: Kernels and copies that the device was given.
        undetermined: Operations so far that a deterministic run is refused.
        capturing: Whether a CUDA graph is being recorded.
        registered: The generators of that graph.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.notes: Counter[Note] = Counter()
        self.launches = 0
        self.undetermined: set[str] = set()
        self.capturing = False
        self.registered: set[int] = set()

    def reset(self) -> None:
        """Forget notes and launches."""
        self.notes.clear()
        self.launches = 0

    def note(self, kind: Kind, operation: object, detail: str = "") -> None:
        """Note something of the operation that is called now."""
        self.notes[Note(kind, str(operation).removeprefix("aten."), _caller(), detail)] += 1

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Look at an operation, and have it done."""
        if func is _DEVICE_OF:
            return func(*args)
        kwargs = kwargs or {}
        inputs = _tensors((args, tuple(kwargs.values())))
        on_device = _is_on_device(inputs)
        name = func._schema.name.removeprefix("aten::")
        if on_device:
            self._look_at_devices(func, name, args, inputs)
        if name in ("_to_copy", "copy_", "_copy_from"):
            self._look_at_copy(func, args, kwargs)
        self._look_at_fused(func, name, args)
        self._look_at_generator(func, kwargs.get("generator"))
        if func in (_ATEN._local_scalar_dense.default, _ATEN.item.default):  # there is no number: any will do
            dtype = args[0].dtype
            return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 1
        if func is _ATEN._fused_adam_.tensor_lr:  # torch cannot do it without memory
            if kwargs["lr"].device != args[0][0].device:
                self.note("refused", func, "the step size is on another device")
            self.launches += _launches(name, args)
            return None
        if func is _ATEN._thnn_fused_lstm_cell.default:  # nor this, if there are no biases
            self.launches += 1
            return torch.empty_like(args[2]), torch.empty_like(args[2]), torch.empty_like(args[0])
        try:
            returned = func(*args, **kwargs)
        except RuntimeError as error:
            self.note("refused", func, str(error).splitlines()[0][:120])
            raise
        if (on_device or _is_on_device(_tensors(returned))) and name not in _VIEWS:
            self.launches += _launches(name, args)
        return returned

    def _look_at_devices(self, func: OpOverload, name: str, args: Sequence[Any], inputs: Sequence[Tensor]) -> None:
        if name in UNDETERMINED:
            self.undetermined.add(name)
        if func in _WAITING:
            self.note("waits", func)
        if func is _ATEN.index.Tensor or name in ("index_put_", "index_put", "_index_put_impl_"):
            indices = [index for index in args[1] if index is not None] if args[0].device.type == "cuda" else []
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.note("waits", func, "a mask as index")
            if any(index.device.type == "cpu" for index in indices):
                self.note("waits", func, "an index of the host")
        elif name not in ("_to_copy", "copy_", "_copy_from"):
            of_host = [tuple(tensor.shape) for tensor in inputs if tensor.device.type == "cpu"]
            if of_host:
                self.note("host number", func, ", ".join(map(str, of_host)))

    def _look_at_copy(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        source, target = args[0], kwargs.get("device", args[0].device)
        if func._schema.name == "aten::copy_":
            source, target = args[1], args[0].device
        ends = source.device.type, torch.device(target).type if target is not None else source.device.type
        if set(ends) != {"cpu", "cuda"}:
            return
        host = source if ends[0] == "cpu" else args[0]
        is_pinned = any(getattr(each, _PINNED, False) for each in (host, host._base))
        non_blocking = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
        if not (non_blocking and is_pinned):
            self.note("waits", func, f"{ends[0]} to {ends[1]}, {'pinned' if is_pinned else 'pageable'} memory")
        elif self.capturing:
            self.note("host number", func, "memory of the host")

    def _look_at_fused(self, func: OpOverload, name: str, args: Sequence[Any]) -> None:
        if not name.startswith("_fused_adam"):
            return
        parameters, gradients, means, squares = args[:4]
        for parameter, *others in zip(parameters, gradients, means, squares, strict=True):
            for other in others:
                if other.dtype != parameter.dtype or other.device != parameter.device:
                    self.note("refused", func, f"{other.dtype} on {other.device} beside {parameter.dtype}")
                strides = zip(parameter.shape, parameter.stride(), other.stride(), strict=True)
                if any(size != 1 and left != right for size, left, right in strides):
                    self.note("refused", func, f"strides {other.stride()} beside {parameter.stride()}")

    def _look_at_generator(self, func: OpOverload, generator: torch.Generator | None) -> None:
        draws_there = generator is not None and generator.device.type == "cuda"
        if draws_there and self.capturing and key_of(generator) not in self.registered:
            self.note("unregistered generator", func)


def key_of(generator: torch.Generator | None) -> int:
    """The address of a generator in torch: equal for all Python objects that stand for one generator."""
    return int(generator._cdata)  # type: ignore[union-attr]  # torch's


def _tensors(value: object) -> list[Tensor]:
    """Return the tensors of an operation's arguments or results, which hold them in lists and tuples at most."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _is_on_device(tensors: Sequence[Tensor]) -> bool:
    return any(tensor.device.type == "cuda" for tensor in tensors)


def _launches(name: str, args: Sequence[Any]) -> int:
    if name == "_foreach_norm":
        return 2
    if name.startswith(("_foreach", "_fused")) and isinstance(args[0], list | tuple):
        return max(len(args[0]) // _TENSORS_A_LAUNCH, 1)
    return 1


def _caller() -> str:
    """Return the innermost line outside of torch and of the rehearsal that led here."""
    import_folder = str(Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((import_folder, _OWN_FOLDER, "<")):
            return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"
    return "?"
