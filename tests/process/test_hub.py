"""`tidemill export --to-hub` and `hf://OWNER/NAME`, with huggingface_hub itself against a stand-in of its API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.hub_stand_in import TOKEN, Hub, hub_stand_in
from tests.support.launched import BOUND_S, ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_PACKAGES = ROOT / ".venv-extras"
_needs_hub = pytest.mark.skipif(
    not (_PACKAGES / "huggingface_hub").exists(), reason="needs make .venv-extras/.installed"
)

_TRAIN = (
    *("train", "--config", "cartpole_dqn", "--run.name", "cart", "--run.target-return", "none"),
    *("--run.max-learner-steps", "100", "--launcher.actors", "1", "--evaluator.episodes", "1"),
)
_LOAD = """
import sys, tidemill
policy = tidemill.load_policy(sys.argv[1])
observation = policy.make_env().reset(seed=0)
print("acts", len(policy.act(observation)), policy.version.metadata.env_id)
"""


def _without_onnx(folder: Path) -> Path:
    """Return a folder with the packages but those that write policy.onnx, which takes longer than all else."""
    packages = folder / "packages"
    if not packages.exists():
        packages.mkdir()
        for package in _PACKAGES.iterdir():
            if not package.name.startswith("onnx"):
                (packages / package.name).symlink_to(package)
    return packages


def _python(folder: Path, *arguments: str, hub: Hub | None = None, token: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"PYTHONPATH": str(_without_onnx(folder)), "HF_HOME": str(folder / "cache"), "HF_TOKEN": token}
    environment["HF_ENDPOINT"] = hub.address if hub is not None else "http://127.0.0.1:9"
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=BOUND_S,
        check=False,
    )


def _tidemill(
    folder: Path, *arguments: str, hub: Hub | None = None, token: str = ""
) -> subprocess.CompletedProcess[str]:
    return _python(folder, "-m", "tidemill.services.launcher", *arguments, hub=hub, token=token)


@_needs_hub
def test_a_policy_goes_to_the_hub_and_comes_back_by_its_name(tmp_path: Path) -> None:
    """Its card has the score, the environment and the commands; mistakes are a line each, and no output has a token."""
    trained = _tidemill(tmp_path, *_TRAIN)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    run = str(tmp_path / "runs" / "cart")
    with hub_stand_in() as hub:
        refused = _tidemill(tmp_path, "export", run, "--to-hub", "me/cart", hub=hub, token="hf_other")
        unsent = _tidemill(tmp_path, "export", run, "--to-hub", "me/cart", hub=hub)
        assert not hub.files
        sent = _tidemill(tmp_path, "export", run, "--to-hub", "me/cart", "--private", hub=hub, token=TOKEN)
        again = _tidemill(tmp_path, "export", run, "--to-hub", "me/cart", hub=hub, token=TOKEN)
        hidden = _tidemill(tmp_path, "evaluate", "hf://me/cart", hub=hub)
        played = _tidemill(tmp_path, "evaluate", "hf://me/cart", "--episodes", "1", hub=hub, token=TOKEN)
        loaded = _python(tmp_path, "-c", _LOAD, "hf://me/cart@main", hub=hub, token=TOKEN)
        unknown = _python(tmp_path, "-c", _LOAD, "hf://me/cart@v9", hub=hub, token=TOKEN)
    for ended in (refused, unsent):
        assert ended.returncode == 2
        assert "the Hub refused hf://me/cart (401): set HF_TOKEN, or run `hf auth login`" in ended.stderr
    assert (sent.returncode, again.returncode) == (0, 0), sent.stderr + again.stderr
    assert hub.private == {"me/cart"}
    assert {"bundle.json", "policy.safetensors", "config.yaml", "README.md"} <= hub.files["me/cart"].keys()
    _, head, card = hub.files["me/cart"]["README.md"].decode().split("---\n", 2)
    (result,) = yaml.safe_load(head)["model-index"][0]["results"]
    assert result["dataset"]["name"] == "CartPole-v1"
    assert "+/-" in result["metrics"][0]["value"]
    assert 'load_policy("hf://me/cart")' in card
    assert "`tidemill evaluate hf://me/cart` plays" in card
    assert "is not on the Hub, or the token (HF_TOKEN, `hf auth login`) may not see it" in hidden.stderr
    assert played.returncode == 0, played.stderr
    assert "mean" in played.stdout
    assert loaded.stdout.startswith("acts 1 CartPole-v1"), loaded.stderr
    assert "NotFound: hf://me/cart is not on the Hub" in unknown.stderr
    for ended in (refused, unsent, sent, again, hidden, played, loaded, unknown):
        assert TOKEN not in ended.stdout + ended.stderr
        assert "hf_other" not in ended.stdout + ended.stderr


@_needs_hub
def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    """It names what was wanted, and what to look at."""
    ended = _tidemill(tmp_path, "evaluate", "hf://me/cart")
    assert ended.returncode != 0
    assert "hf://me/cart cannot be reached and is not in the cache: check HF_ENDPOINT and the network" in ended.stderr
    assert "Traceback" not in ended.stderr
