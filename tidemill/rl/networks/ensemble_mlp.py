"""Several equal networks as one, with gradients written out.

Small networks on a CPU spend most of an update in autograd's and the modules' bookkeeping, not in arithmetic.
A network of this kind runs each layer of all its ensemble_size as one batched product, and goes backward by hand: the
bookkeeping of an update of SAC falls to a third. Tests hold its gradients against autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.batch_renorm import BatchRenorm, Renormalised, RenormBounds
from tidemill.rl.networks.layers.linear import flat
from tidemill.rl.networks.precision import MixedPrecision
from tidemill.rl.networks.recurrent import Seen, Steps
from tidemill.rl.optimizers import trained_parameters
from tidemill.rl.settings.base import MatmulSettings
from tidemill.types import EnvSpec

LAYER_NORM_EPSILON = 1e-5
_NARROW = 16
"""Columns below which a product is faster transposed, as one with few rows: up to thirteen times, on a CPU."""


class LayerActivations(NamedTuple):
    """Results of a layer's forward pass that its backward pass needs; E is the ensemble's size.

    Attributes:
        inputs: Of the linear product, [E, B, in].
        output: After the ReLU if the layer has one, [E, B, out].
        norm: Of a normalised layer: the product, its mean, 1 / its standard deviation and the normalised
            product; empty otherwise.
        renorm: How the inputs were renormalised before the product; None for a layer that does not.
    """

    inputs: Tensor
    output: Tensor
    norm: tuple[Tensor, ...]
    renorm: Renormalised | None = None


class EnsembleLayer(nn.Module):
    """A linear layer of each copy, then optionally a layer norm (Ba et al. 2016) and a ReLU.

    Before it all the inputs may be renormalised by their batch.
    """

    def __init__(
        self,
        ensemble_size: int,
        inputs: int,
        outputs: int,
        layer_norm: bool,
        relu: bool,
        rng: torch.Generator,
        batch_renorm: bool = False,
    ) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # as torch.nn.Linear starts
        self.weight = nn.Parameter(torch.empty(ensemble_size, inputs, outputs).uniform_(-bound, bound, generator=rng))
        self.bias = nn.Parameter(torch.empty(ensemble_size, 1, outputs).uniform_(-bound, bound, generator=rng))
        self.scale = nn.Parameter(torch.ones(ensemble_size, 1, outputs)) if layer_norm else None
        self.shift = nn.Parameter(torch.zeros(ensemble_size, 1, outputs)) if layer_norm else None
        self.renorm = BatchRenorm(ensemble_size, inputs) if batch_renorm else None
        self._relu, self._narrow = relu, outputs < _NARROW
        self.products = torch.float32
        """Format that factors and products are rounded to; bias, gradients and what leaves the layer are float32."""

    def forward(self, x: Tensor, bounds: RenormBounds | None = None) -> LayerActivations:
        """Return the layer's output for x [E, B, in], with what the gradients need; see `BatchRenorm` for `bounds`."""
        renorm = None
        if self.renorm is not None:
            renorm = self.renorm(x, bounds)
            x = renorm.output
        output = self._linear(x)
        norm: tuple[Tensor, ...] = ()
        if self.scale is not None and self.shift is not None:
            width = output.shape[-1:]
            normalised, mean, inverse = torch.native_layer_norm(output, width, None, None, LAYER_NORM_EPSILON)
            norm = (output, mean, inverse, normalised)
            output = torch.addcmul(self.shift, normalised, self.scale)
        return LayerActivations(x, output.relu_() if self._relu else output, norm, renorm)

    def _linear(self, x: Tensor) -> Tensor:
        if self.weight.shape[2] == 1:  # a product with one column is slow as a matrix product
            return (x * self.weight.mT).sum(dim=-1, keepdim=True).add_(self.bias)
        if self.products == torch.float32:
            if self._narrow:
                return torch.baddbmm(self.bias.mT, self.weight.mT, x.mT).mT
            return torch.baddbmm(self.bias, x, self.weight)
        return self._product(x, self.weight).add_(self.bias)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        if self.products == torch.float32:
            return torch.bmm(left, right)
        return torch.bmm(left.to(self.products), right.to(self.products)).float()

    def product_gradient(self, saved: LayerActivations, gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the gradient of the linear product, and those of scale and shift if there are any."""
        if self._relu:
            gradient = torch.ops.aten.threshold_backward(gradient, saved.output, 0)
        if self.scale is None:
            return gradient, []
        product, mean, inverse, normalised = saved.norm
        affine = [(gradient * normalised).sum(dim=1, keepdim=True), gradient.sum(dim=1, keepdim=True)]
        gradient, _, _ = torch.ops.aten.native_layer_norm_backward(
            gradient * self.scale, product, product.shape[-1:], mean, inverse, None, None, [True, False, False]
        )
        return gradient, affine

    def weight_gradient(self, saved: LayerActivations, gradient: Tensor) -> Tensor:
        """Return the gradient of the weight from that of the linear product."""
        if self._narrow:
            return self._product(gradient.mT, saved.inputs).mT.contiguous()
        return self._product(saved.inputs.mT, gradient)

    def input_gradient(self, gradient: Tensor, last: int = 0) -> Tensor:
        """Return the gradient of the product's inputs, or of the `last` of them, from that of the linear product."""
        weight = self.weight[:, -last:] if last else self.weight
        if weight.shape[2] == 1:
            return gradient * weight.mT
        return self._product(gradient, weight.mT)


class EnsembleMLP(MixedPrecision):
    """E networks of linear layers with ReLU in between: [B, inputs] -> [E, B, outputs]."""

    def __init__(
        self,
        ensemble_size: int,
        inputs: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        rng: torch.Generator,
        layer_norm: bool = False,
        batch_renorm: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            ensemble_size: How many networks.
            inputs: Numbers that each takes.
            hidden_sizes: Units of each hidden layer.
            outputs: Numbers that each returns.
            rng: Draws the parameters.
            layer_norm: Whether a layer norm follows each hidden layer's product.
            batch_renorm: Whether the inputs of every layer are renormalised by their batch.
        """
        super().__init__()
        widths = (inputs, *hidden_sizes, outputs)
        last = len(hidden_sizes)
        layers = [
            EnsembleLayer(ensemble_size, a, b, layer_norm and i < last, i < last, rng, batch_renorm)
            for i, (a, b) in enumerate(pairwise(widths))
        ]
        self.layers = nn.ModuleList(layers)
        self._layers = tuple(layers)  # to iterate without the module list's bookkeeping
        self._ensemble_size = ensemble_size

    def forward(self, observation: Seen, action: Tensor | None = None) -> Tensor:
        """Return outputs [E, B, outputs] of one input for all networks; see `activations`."""
        return self.activations(observation, action)[-1].output

    def set_update_format(self, settings: MatmulSettings, env_spec: EnvSpec, device: torch.device) -> None:
        """Besides, have the layers between hidden ones, whose products are the large ones, multiply in the format."""
        super().set_update_format(settings, env_spec, device)
        for layer in self._layers[1:-1]:
            layer.products = self.matmul_precision.dtype

    def activations(
        self, observation: Seen, action: Tensor | None = None, bounds: RenormBounds | None = None
    ) -> list[LayerActivations]:
        """Return the passes of all layers; the last one's `output` is the network's.

        Args:
            observation: [B, ...], see `flat`.
            action: Put behind it, [B, A]; none for a network of observations alone. All are `inputs` numbers.
            bounds: Of a network that renormalises: by the batch's own statistics within these; None: by the running
                ones, which no pass changes.
        """
        assert isinstance(observation, Tensor), "steps need a torso with an LSTM"
        activations: list[LayerActivations] = []
        x = flat(observation)
        hidden = (x if action is None else torch.cat((x, action), dim=-1)).expand(self._ensemble_size, -1, -1)
        for layer in self._layers:
            activations.append(layer(hidden, bounds))
            hidden = activations[-1].output
        return activations

    def parameter_gradients(self, activations: Sequence[LayerActivations], gradient: Tensor) -> list[Tensor]:
        """Return the gradients of `parameters()`, in their order, from that of the output."""
        gradients: list[Tensor] = []
        for i in range(len(activations) - 1, -1, -1):
            layer, saved = self._layers[i], activations[i]
            gradient, affine = layer.product_gradient(saved, gradient)
            own = [layer.weight_gradient(saved, gradient), gradient.sum(dim=1, keepdim=True), *affine]
            if i or saved.renorm is not None:
                gradient = layer.input_gradient(gradient)
            if layer.renorm is not None and saved.renorm is not None:
                gradient, affine = layer.renorm.backward(saved.renorm, gradient)
                own += affine
            gradients = own + gradients
        return gradients

    def input_gradient(self, activations: Sequence[LayerActivations], gradient: Tensor, last: int) -> Tensor:
        """Return the gradient of the `last` inputs, 0 for all, of each copy, [E, B, last]; no parameter takes part."""
        for number in range(len(activations) - 1, -1, -1):
            layer, saved = self._layers[number], activations[number]
            gradient, _ = layer.product_gradient(saved, gradient)
            if layer.renorm is None or saved.renorm is None:
                gradient = layer.input_gradient(gradient, last=0 if number else last)
            else:
                gradient, _ = layer.renorm.backward(saved.renorm, layer.input_gradient(gradient))
        return gradient[..., -last:]

    def batch_statistics(self, activations: Sequence[LayerActivations]) -> list[Tensor]:
        """Return mean and standard deviation of each layer's batch, of a pass by them; empty without any."""
        found = [(saved.renorm.mean, saved.renorm.std) for saved in activations if saved.renorm is not None]
        return [statistic for pair in found for statistic in pair if statistic is not None]

    def track(self, statistics: Sequence[Tensor]) -> None:
        """Move the running statistics towards what `batch_statistics` returned."""
        for layer, mean, std in zip(self._layers, statistics[::2], statistics[1::2], strict=False):
            assert layer.renorm is not None, "a network that does not renormalise has no statistics"
            layer.renorm.track(mean, std)


class TorsoEnsembleMLP(EnsembleMLP):
    """An ensemble behind a torso, which autograd goes back through; used as an `EnsembleMLP` is."""

    def __init__(self, torso: nn.Module, mlp: EnsembleMLP) -> None:
        """Take both; the layers of `mlp` become this network's own."""
        nn.Module.__init__(self)
        self.layers, self._layers, self._ensemble_size = mlp.layers, mlp._layers, mlp._ensemble_size
        self.torso = torso

    def forward(self, observation: Seen, action: Tensor | None = None) -> Tensor:
        """Return outputs [E, B, outputs]; as `activations`, without what a gradient needs."""
        return self.behind(self._features(observation), action)

    def behind(self, features: Tensor, action: Tensor | None = None) -> Tensor:
        """Return outputs [E, B, outputs] of the torso's features [B, F]."""
        return super().activations(features, action)[-1].output

    def activations(
        self, observation: Seen, action: Tensor | None = None, bounds: RenormBounds | None = None
    ) -> list[LayerActivations]:
        """Apply torso and layers; the torso comes first, its `output` are the features [B, F] with their graph."""
        with torch.enable_grad():
            features = self._features(observation)
        return [LayerActivations(features, features, ()), *super().activations(features.detach(), action, bounds)]

    def _features(self, observation: Seen) -> Tensor:
        """Compute the torso's features of observations or steps, float32 [B, F]."""
        if isinstance(observation, Steps):
            remembered: Tensor = self.torso(observation, self.matmul_precision)
            return remembered
        with self.matmul_precision(self.torso):
            features: Tensor = self.torso(observation)
        return features.float()

    def parameter_gradients(self, activations: Sequence[LayerActivations], gradient: Tensor) -> list[Tensor]:
        """Return the gradients of the parameters that learn, in their order: the layers', then the torso's."""
        own = super().parameter_gradients(activations[1:], gradient)
        parameters, features = trained_parameters(self.torso), activations[0].output
        if not (parameters and features.requires_grad):  # the torso is frozen, or runs without gradients
            return own + [torch.zeros_like(parameter) for parameter in parameters]
        flowing = super().input_gradient(activations[1:], gradient, last=0).sum(dim=0)[:, : features.shape[1]]
        return own + list(torch.autograd.grad(features, parameters, flowing, materialize_grads=True))

    def input_gradient(self, activations: Sequence[LayerActivations], gradient: Tensor, last: int) -> Tensor:
        """Return the gradient of the `last` inputs, which are actions; see `EnsembleMLP.input_gradient`."""
        return super().input_gradient(activations[1:], gradient, last)
