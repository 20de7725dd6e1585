"""Choice of the number format in which a network acts."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tidemill.errors import ConfigError, described
from tidemill.rl.networks.layers.image import Convolution, to_channels_last
from tidemill.rl.networks.layers.linear import Linear
from tidemill.rl.settings.base import MatmulSettings
from tidemill.types import EnvSpec

Precision = Literal["auto", "float32", "bfloat16"]

_ROUNDS = 5
_WORTHWHILE = 0.8  # bfloat16 costs accuracy, so it must save a fifth of the time


def acting_dtype(network: nn.Module, observation: Tensor, precision: Precision) -> torch.dtype:
    """Return the format for forward passes of `network`.

    Args:
        network: What is passed through; not changed.
        observation: A batch of the size that will be acted on.
        precision: `auto` times both: bfloat16 is twice as fast where the processor multiplies it and slower
            where it does not.

    Raises:
        ConfigError: It is `bfloat16`, and the network does not return it.
    """
    if precision == "float32":
        return torch.float32
    half = copy.deepcopy(network).to(torch.bfloat16)
    if fault := _fault(half, observation):
        if precision == "auto":
            return torch.float32
        raise ConfigError(
            f"precision is 'bfloat16', but agent.network with parameters in it {fault}: set actor.precision and "
            "inference.precision to auto or float32"
        )
    if precision == "bfloat16":
        return torch.bfloat16
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(_ROUNDS):  # in turn, so that a busy moment meets both; the first round warms up
        for dtype, candidate in ((torch.float32, network), (torch.bfloat16, half)):
            seconds[dtype] = min(seconds[dtype], _forward_s(candidate, observation))
    return torch.bfloat16 if seconds[torch.bfloat16] < _WORTHWHILE * seconds[torch.float32] else torch.float32


class MatmulPrecision:
    """In which number format the torso and the hidden layers of a network multiply; everything else is float32.

    Parameters, gradients, the last layer and the loss stay float32: only the factors of products are rounded. Torch's
    autocast does that, but casts parameters one by one; those of the convolutions and linear layers of Tidemill are
    cast before, all by one kernel.
    """

    def __init__(self, precision: Precision, device: torch.device, *, images: bool) -> None:
        """Choose.

        Args:
            precision: `auto` takes bfloat16 for images where `pays` says so. It asks for no measurement at the start,
                which might end otherwise after a resume, or on another rank.
            device: Where the network is.
            images: Whether the network sees images; a small network's time is not in its products.
        """
        short = images and pays(device) if precision == "auto" else precision == "bfloat16"
        self.dtype = torch.bfloat16 if short else torch.float32
        """Number format of the products."""
        self._device_type, self._short = device.type, short

    def __call__(self, *modules: nn.Module | None) -> AbstractContextManager[object]:
        """Return the context in which to pass through `modules`: torso and hidden layers."""
        if not self._short:
            return nullcontext()
        if torch.compiler.is_compiling():  # fuses the casts by itself
            return torch.autocast(self._device_type, torch.bfloat16)
        return _short_products(self._device_type, modules)


@contextmanager
def _short_products(device_type: str, modules: Sequence[nn.Module | None]) -> Iterator[None]:
    """Multiply in bfloat16, by copies of the layers' parameters that are made together."""
    layers = [layer for module in modules if module is not None for layer in module.modules()]
    places = [
        (layer._parameters, name, parameter)
        for layer in layers
        if isinstance(layer, Convolution | Linear)
        for name, parameter in layer._parameters.items()
        if parameter is not None and not (name == "weight" and getattr(layer, "scale", 1.0) != 1.0)  # is scaled first
    ]
    short = _Rounded.apply(*(parameter for *_, parameter in places)) if places else ()  # type: ignore[no-untyped-call]  # torch's
    try:
        for (parameters, name, _), value in zip(places, short, strict=True):
            parameters[name] = value
        with torch.autocast(device_type, torch.bfloat16):
            yield
    finally:
        for parameters, name, parameter in places:
            parameters[name] = parameter


class _Rounded(torch.autograd.Function):
    """float32 tensors -> bfloat16 ones, and gradients back, by one kernel each."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401, ARG004 - torch's
        """Return the values in bfloat16."""
        return _cast(values, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401, ARG004 - torch's
        """Return the gradients in float32."""
        return _cast(gradients, torch.float32)


def _cast(values: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(value, dtype=dtype) for value in values]
    torch._foreach_copy_(copies, list(values))
    return tuple(copies)


FLOAT32 = MatmulPrecision("float32", torch.device("cpu"), images=False)
"""No rounding, on any device."""


class MixedPrecision(nn.Module):
    """A network whose torso and hidden layers may multiply in bfloat16 during updates; see `MatmulPrecision`."""

    matmul_precision = FLOAT32
    """In which format updates multiply."""

    def set_update_format(self, settings: MatmulSettings, env_spec: EnvSpec, device: torch.device) -> None:
        """Have updates multiply in the format, and lay images in memory in the order, that the settings ask for."""
        self.matmul_precision = MatmulPrecision(settings.update_precision, device, images=env_spec.is_image)
        is_last = settings.channels_last
        if is_last == "auto":
            is_last = device.type == "cuda" or self.matmul_precision.dtype == torch.float32
        if is_last:
            to_channels_last(self)


def in_float32(layer: nn.Module, x: Tensor) -> Tensor:
    """Return a layer's output for `x` in float32, even within the context of `MatmulPrecision`."""
    around = torch.is_autocast_enabled(x.device.type)
    with torch.autocast(x.device.type, enabled=False) if around else nullcontext():
        y: Tensor = layer(x.float())
    return y


def pays(device: torch.device) -> bool:
    """True if an update of an image network is faster in bfloat16 on a device, by the device's capabilities.

    GPUs from compute capability 8 on and processors with AVX-512 BF16 or AMX multiply it in dedicated units; the
    others would only convert. Measured on a processor with AVX-512 BF16 and on an H100, see docs/performance.md.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@torch.inference_mode()
def _fault(half: nn.Module, observation: Tensor) -> str:
    """Return why a network with bfloat16 parameters does not return bfloat16, as layers behind it require; or ""."""
    try:
        dtype = half(observation).dtype
    except Exception as error:  # whatever a user's module raises that mixes formats or does not take bfloat16
        return f"fails: {described(error)}"
    return "" if dtype == torch.bfloat16 else f"returns {dtype}"


@torch.inference_mode()
def _forward_s(network: nn.Module, observation: Tensor) -> float:
    if observation.device.type == "cpu":  # processor time: others may keep the clock running
        started = time.process_time()
        network(observation)
        return time.process_time() - started
    torch.cuda.synchronize(observation.device)  # a GPU computes later: its launches take the same time in any format
    started = time.perf_counter()
    network(observation)
    torch.cuda.synchronize(observation.device)
    return time.perf_counter() - started
