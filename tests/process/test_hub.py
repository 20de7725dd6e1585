"""`tidemill export --to-hub` and `hf://OWNER/NAME`, with huggingface_hub itself against a stand-in of its API."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.extras import EXTRAS, needs_extra, run_with_extras
from tests.support.forked_service import fork_server
from tests.support.hub_stand_in import TOKEN, Hub, hub_stand_in
from tests.support.launched import ROOT, ended

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_needs_hub = needs_extra("huggingface_hub")
_RUN = ROOT / "tests" / "data" / "formats" / "0.1" / "run"
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
        for package in EXTRAS.iterdir():
            if not package.name.startswith("onnx"):
                (packages / package.name).symlink_to(package)
    return packages


def _variables(folder: Path, hub: Hub | None = None, token: str = "") -> dict[str, str]:
    """Return the environment of a command: where packages and cache are, which Hub answers, and the token."""
    endpoint = hub.address if hub is not None else "http://127.0.0.1:9"
    paths = {"PYTHONPATH": str(_without_onnx(folder)), "HF_HOME": str(folder / "cache")}
    return paths | {"HF_TOKEN": token, "HF_ENDPOINT": endpoint}


def _loaded(folder: Path, name: str, hub: Hub) -> subprocess.CompletedProcess[str]:
    return run_with_extras("-c", _LOAD, name, cwd=folder, **_variables(folder, hub, TOKEN))


@pytest.fixture
def tidemill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str]]]:
    """Run a command that finds the packages in `tmp_path`; forked, so that torch is imported once for all."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    with fork_server(_variables(tmp_path)) as server:

        def run(*arguments: str, hub: Hub | None = None, token: str = "") -> tuple[int, str]:
            return ended(*arguments, cwd=tmp_path, environment=_variables(tmp_path, hub, token), server=server)

        yield run


@_needs_hub
def test_a_policy_goes_to_the_hub_and_comes_back_by_its_name(
    tidemill: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Its card has the score, the environment and the commands; mistakes are a line each, and no output has a token."""
    run = str(shutil.copytree(_RUN, tmp_path / "runs" / "cart"))
    with hub_stand_in() as hub:
        refused = tidemill("export", run, "--to-hub", "me/cart", hub=hub, token="hf_other")
        unsent = tidemill("export", run, "--to-hub", "me/cart", hub=hub)
        assert not hub.files
        unmade = [
            tidemill("export", "runs", "--to-hub", "me/cart", hub=hub, token=TOKEN),
            tidemill("export", run, "--to-hub", "me/cart", "--out", run, hub=hub, token=TOKEN),
            tidemill("export", run, "--to-hub", "me/cart", "--tag", "9", hub=hub, token=TOKEN),
        ]
        assert not hub.files
        sent = tidemill("export", run, "--to-hub", "me/cart", "--private", hub=hub, token=TOKEN)
        hub.files["me/cart"] |= {"policy.onnx": b"of the policy before", "notes.md": b"mine"}
        again = tidemill("export", run, "--to-hub", "me/cart", hub=hub, token=TOKEN)
        hidden = tidemill("evaluate", "hf://me/cart", hub=hub)
        played = tidemill("evaluate", "hf://me/cart", "--episodes", "1", hub=hub, token=TOKEN)
        loaded = _loaded(tmp_path, "hf://me/cart@main", hub)
        unknown = _loaded(tmp_path, "hf://me/cart@v9", hub)
    for code, said in (refused, unsent):
        assert code == 2
        assert "the Hub refused hf://me/cart (401): set HF_TOKEN, or run `hf auth login`" in said
    for (code, said), why in zip(unmade, ("is not a run", "exists; give another", "no version 9"), strict=True):
        assert code != 0
        assert why in said
    assert (sent[0], again[0]) == (0, 0), sent[1] + again[1]
    assert hub.private == {"me/cart"}
    assert {"bundle.json", "policy.safetensors", "config.yaml", "README.md", "notes.md"} <= hub.files["me/cart"].keys()
    assert "policy.onnx" not in hub.files["me/cart"]
    _, head, card = hub.files["me/cart"]["README.md"].decode().split("---\n", 2)
    (result,) = yaml.safe_load(head)["model-index"][0]["results"]
    assert result["dataset"]["name"] == "CartPole-v1"
    assert "+/-" in result["metrics"][0]["value"]
    assert 'load_policy("hf://me/cart")' in card
    assert "`tidemill evaluate hf://me/cart` plays" in card
    assert "is not on the Hub, or the token (HF_TOKEN, `hf auth login`) may not see it" in hidden[1]
    assert played[0] == 0, played[1]
    assert "mean" in played[1]
    assert loaded.stdout.startswith("acts 1 CartPole-v1"), loaded.stderr
    assert "hf://me/cart is not on the Hub" in unknown.stderr
    outputs = [said for _, said in (refused, unsent, sent, again, hidden, played)]
    for said in (*outputs, loaded.stdout + loaded.stderr, unknown.stdout + unknown.stderr):
        assert TOKEN not in said
        assert "hf_other" not in said


@_needs_hub
def test_a_hub_that_does_not_answer_is_one_line(tidemill: Callable[..., tuple[int, str]]) -> None:
    """It names what was wanted, and what to look at."""
    code, said = tidemill("evaluate", "hf://me/cart")
    assert code != 0
    assert "hf://me/cart cannot be reached and is not in the cache: check HF_ENDPOINT and the network" in said
    assert "Traceback" not in said


@_needs_hub
def test_a_repository_without_a_bundle_is_no_run_of_ones_own(
    tidemill: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Its settings could name code, which a run imports without being asked."""
    (tmp_path / "evil.py").write_text("print('imported')")
    with hub_stand_in() as hub:
        hub.files["you/cart"] = {"config.yaml": b'agent: {algorithm: "evil:Config"}'}
        code, said = tidemill("evaluate", "hf://you/cart", hub=hub)
        loaded = _loaded(tmp_path, "hf://you/cart", hub)
    assert code != 0
    for output in (said, loaded.stderr):
        assert "hf://you/cart is not a bundle: it has no bundle.json" in output
    assert "imported" not in said + loaded.stdout
