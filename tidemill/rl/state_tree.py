"""Nested state (tensors, numbers, text) as JSON plus a flat set of named tensors, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tidemill.errors import DataLoss

Tree = Any
"""None, bool, int, float, str, Tensor, or a list, tuple or dict of trees; a dict's keys are str or int."""

_TENSOR, _TUPLE, _DICT = "tensor", "tuple", "dict"


def copied_to_cpu(tree: Tree) -> Tree:
    """Return a copy on the CPU that shares no memory with the original, so that training may continue."""
    return _mapped(tree, lambda tensor: tensor.detach().to("cpu", copy=True).contiguous())


def clone_tree(tree: Tree) -> Tree:
    """Return a copy that shares no memory with the original; its tensors stay on their devices."""
    return _mapped(tree, lambda tensor: tensor.detach().clone(memory_format=torch.preserve_format))


def _mapped(tree: Tree, copy: Callable[[Tensor], Tensor]) -> Tree:
    if isinstance(tree, Tensor):
        return copy(tree)
    if isinstance(tree, dict):
        return {key: _mapped(value, copy) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(value, copy) for value in tree)
    return tree


def flatten(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """Return a JSON document of the tree and its tensors by path, e.g. `agent.optimizer.state.0.exp_avg`.

    Raises:
        TypeError: A value is of a type that a checkpoint cannot hold; the message names its path.
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(tree, "", tensors), tensors


def unflatten(document: Any, tensors: dict[str, Tensor]) -> Tree:  # noqa: ANN401
    """Return the tree that `flatten` took apart.

    Raises:
        DataLoss: The document names a missing tensor, or was not made by `flatten`.
    """
    if isinstance(document, list):
        return [unflatten(value, tensors) for value in document]
    if not isinstance(document, dict):
        return document
    ((kind, value),) = document.items()
    if kind == _TENSOR:
        if value not in tensors:
            raise DataLoss(f"tensor {value!r} is missing")
        return tensors[value]
    if kind == _TUPLE:
        return tuple(unflatten(item, tensors) for item in value)
    if kind == _DICT:
        return {key: unflatten(item, tensors) for key, item in value}
    raise DataLoss(f"unknown kind of value {kind!r}")


def _flatten(tree: Tree, path: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    if isinstance(tree, Tensor):
        tensors[path] = tree
        return {_TENSOR: path}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, dict):
        return {_DICT: [[_key(key, path), _flatten(tree[key], _join(path, key), tensors)] for key in tree]}
    if isinstance(tree, list | tuple):
        items = [_flatten(item, _join(path, index), tensors) for index, item in enumerate(tree)]
        return items if isinstance(tree, list) else {_TUPLE: items}
    raise TypeError(f"{path} is a {type(tree).__name__}, allowed: tensor, number, text, None, list, tuple or dict")


def _key(key: object, path: str) -> int | str:
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise TypeError(f"{path} has the key {key!r}, allowed: text and whole numbers")
    return key


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def shapes_of(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    """Return the shape of each tensor, by name, as JSON can hold it."""
    return {name: list(torch.as_tensor(tensor).shape) for name, tensor in tensors.items()}
