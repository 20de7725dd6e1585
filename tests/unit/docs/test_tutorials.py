"""The code of tutorials: taken from the page, and run."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tidemill
from tidemill import replay
from tidemill.config.load import load_config, read_document
from tidemill.replay.sampling import adapters

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "tutorials" / "own-environment.md"
REPLAY = (ROOT / "docs" / "replay.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the tutorial where a reader has put them."""
    text = PAGE.read_text()
    code, check, shaped = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (settings,) = re.findall(r"`thermostat.yaml`:\n\n```yaml\n(.*?)```", text, re.DOTALL)
    for name, content in (("thermostat.py", f"{code}\n{shaped}"), ("check.py", check), ("thermostat.yaml", settings)):
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("thermostat", None)


def test_environment_of_the_tutorial_is_sound(folder: Path) -> None:
    """The check of gymnasium finds nothing, as the page says to run it."""
    exec((folder / "check.py").read_text(), {})


def test_environment_of_the_tutorial_is_made_by_its_config(folder: Path) -> None:
    """With its argument and its limit: an unheated room at 0 degrees outside loses a tenth a minute."""
    config = load_config(read_document(folder / "thermostat.yaml"))
    env = tidemill.make_env(config.env, 2, training=True)
    try:
        first = env.reset(1)
        cold = np.zeros((2, 1), np.float32) - 1.0  # the lowest action: no heat
        second = env.step(cold).observation
        np.testing.assert_allclose((second + 1.0) / (first + 1.0), 0.9, rtol=1e-4)
        config.agent.validate_env(env.spec)
    finally:
        env.close()
    assert importlib.import_module("thermostat").Thermostat()._outside == 5.0


def test_reward_of_the_tutorial_is_shaped_in_training_alone(folder: Path) -> None:
    """An unheated room soon costs more than 0.2 a minute, but not the actors."""
    document = read_document(folder / "thermostat.yaml")
    config = load_config(document | {"env": document["env"] | {"id": "thermostat:forgiving"}})
    for training in (True, False):
        env = tidemill.make_env(config.env, 1, training=training)
        env.reset(1)
        rewards = [float(env.step(np.full((1, 1), -1.0, np.float32)).reward[0]) for _ in range(20)]
        env.close()
        assert bool(min(rewards) < -0.25) is not training


def test_snippets_of_replay_import_what_they_call() -> None:
    """Each public function and class that a block calls is imported in some block of the page."""
    public = {*replay.__all__, *(name for name, value in vars(adapters).items() if callable(value))}
    nodes = [node for block in re.findall(r"```python\n(.*?)```", REPLAY, re.DOTALL) for node in _nodes(block)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)} & public
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {"ReplayDataset", "torch_dataset"} <= used
    assert used - imported == set()


def _nodes(block: str) -> Iterator[ast.AST]:
    """Yield the nodes of a block, which may await."""
    body = "".join(f"    {line}\n" for line in block.splitlines())
    return ast.walk(ast.parse(f"async def snippet():\n{body}"))


def test_snippet_of_epochs_names_no_prioritized_table() -> None:
    """Epochs need a uniform sampler, and the server of the tutorial has only the table that write.py makes."""
    prioritized = re.findall(r'TableConfig\("(\w+)", signature_like\(step\), prioritized', REPLAY)
    by_epoch = re.findall(r'ReplayDataset\(\s*address, "(\w+)", \d+, epochs=', REPLAY)
    assert prioritized
    assert by_epoch
    assert set(by_epoch) & set(prioritized) == set()
