"""Nested state as JSON and tensors."""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.naming import naming
from tidemill.errors import DataLoss
from tidemill.rl.state_tree import Tree, copied_to_cpu, flatten, unflatten
from tidemill.services.learner.checkpoint.resume import load_rng_state, rng_state, seed_rng


def _round_trip(tree: Tree) -> Tree:
    document, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(document)), tensors)


def test_tree_of_every_kind_of_value_comes_back() -> None:
    """Keys that are numbers, tuples, None, huge integers and infinities survive JSON."""
    tree = {"a": [1, 2.5, None, True, "x"], 0: {"b": (1, (2,))}, "big": 2**127, "inf": float("inf"), "e": {}}
    assert _round_trip(tree) == tree


def test_tensors_come_back_by_path() -> None:
    """A tensor lies under its path, with its dtype and value."""
    document, tensors = flatten({"optimizer": {"0": {"step": torch.tensor(3.0)}}, "list": [torch.arange(2)]})
    assert sorted(tensors) == ["list.0", "optimizer.0.step"]
    tree = unflatten(document, tensors)
    assert tree["list"][0].tolist() == [0, 1]
    assert tree["optimizer"]["0"]["step"].item() == 3.0


def test_value_that_cannot_be_kept_is_named() -> None:
    """An unknown type says where it stands."""
    with pytest.raises(TypeError, match=naming("a.b.1")):
        flatten({"a": {"b": [0, set()]}})


def test_missing_tensor_is_data_loss() -> None:
    """A document that names a tensor the file lacks is corrupt."""
    document, _ = flatten({"a": torch.zeros(1)})
    with pytest.raises(DataLoss, match=naming("'a'")):
        unflatten(document, {})


def test_snapshot_does_not_follow_the_original() -> None:
    """Training after the copy does not change what is written."""
    live = {"weight": torch.zeros(2), "view": torch.arange(4).reshape(2, 2).T}
    copy = copied_to_cpu(live)
    live["weight"] += 1
    assert copy["weight"].tolist() == [0, 0]
    assert copy["view"].is_contiguous()


def test_random_generators_go_on_where_they_were() -> None:
    """Python, NumPy and torch draw the same numbers after a round trip."""
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    seed_rng(7)
    draw()
    state = _round_trip(rng_state())
    expected = draw()
    seed_rng(8)
    load_rng_state(state)
    assert draw() == expected
