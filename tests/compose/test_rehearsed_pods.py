"""A run as the manifests for Kubernetes have it, from its own settings to its policy: each pod is a process."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose.manifests import objects
from tests.compose.pods import Pods, pods_of, why_not
from tests.support.waiting import crowd, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are networks"),
]

_SETTINGS = {
    "run": {"name": "own", "max_learner_steps": 400},
    "env": {"id": "my_env:make", "max_evaluation_steps": 50},
    "agent": {"hidden_sizes": [16], "batch_size": 16, "start_steps": 50},
    "table": {"min_size": 100},
    "learner": {"publish_every": 20, "updates_per_env_step": 1.0},
    "actor": {"max_env_steps_per_s": 30},
    "evaluator": {"episodes": 2, "video": False, "min_interval_s": 0.5, "start_env_steps": 0},
}
_TWO_NODES = [
    {"op": "replace", "path": f"/spec/{count}", "value": 2} for count in ("completions", "parallelism")
]  # as overlays/multi-node, without GPUs
_PODS_WAIT_S = 300.0 * min(crowd(), 3.0)  # eleven processes, most with torch, and a training
_LOOK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8100/status.json').read().decode())"
_MODULE = """
import gymnasium

def make(**settings):
    return gymnasium.make("Pendulum-v1", **settings)
"""


@contextmanager
def _pods(kubernetes: Path, folder: Path, config: str) -> Iterator[Pods]:
    """Give the pods of an overlay on the base: settings and a module of the user's, learners on two nodes."""
    own, there = folder / "own", folder / "pods"
    own.mkdir()
    there.mkdir()
    (own / "run.yaml").write_text(yaml.safe_dump(_SETTINGS))
    (own / "my_env.py").write_text(_MODULE)
    overlay = {
        "resources": [os.path.relpath(kubernetes / "base", own)],
        "components": [os.path.relpath(kubernetes / "components/secrets", own)],
        "replicas": [{"name": "actor", "count": 2}],
        "configMapGenerator": [
            {"name": "tidemill-own", "files": ["run.yaml", "my_env.py"]},
            {
                "name": "tidemill-run",
                "behavior": "merge",
                "literals": [f"TIDEMILL_CONFIG={config}", "ACTORS=2", "LEARNER_NODES=2"],
            },
        ],
        "patches": [{"target": {"kind": "Job", "name": "learner"}, "patch": json.dumps(_TWO_NODES)}],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    with pods_of(list(objects(own)), there) as pods:
        yield pods


def test_wrong_setting_ends_before_the_learner(kubernetes: Path, tmp_path: Path) -> None:
    """In its init container, with exit code 2 and the reason in one line."""
    with _pods(kubernetes, tmp_path, "/own/nope.yaml") as run:
        assert run["learner-0"].prepare() == 2
        (line,) = run["learner-0"].log.splitlines()
        assert "nope.yaml" in line


def test_pods_train_and_the_policy_comes_out(kubernetes: Path, tmp_path: Path) -> None:
    """Checked, over TLS with tokens, with every probe answered; the Jobs end with 0, then the page's pod exports."""
    with _pods(kubernetes, tmp_path, "/own/run.yaml") as run:
        _train(run, tmp_path)


def _seen(run: Pods) -> dict[str, Any]:
    """Return the page, asked in its pod, where `kubectl port-forward` leads."""
    said = run["page"].execute("python", "-c", _LOOK)
    document: dict[str, Any] = json.loads(said)
    return document


def _has_ended(job: subprocess.Popen[bytes]) -> bool:
    return job.poll() is not None


def _train(run: Pods, tmp_path: Path) -> None:
    run.start()
    jobs = [run[name].process for name in ("learner-0", "learner-1", "evaluator-0")]

    def logs() -> str:
        return "\n".join(f"--- {name}\n{pod.log[-3000:]}" for name, pod in run.pods.items())

    wait_until(run.ready, "every pod is ready", _PODS_WAIT_S, longest_pause_s=1.0, describe=logs)
    wait_until(
        lambda: _seen(run)["state"] != "starting",
        "the page sees the learner",
        _PODS_WAIT_S,
        longest_pause_s=1.0,
        describe=logs,
    )
    names = _seen(run)["logs"].keys()
    assert {"actor-0", "actor-1", "evaluator", "learner-0", "learner-1", "paramserver", "replay-0", "replay-1"} <= names
    for job in jobs:
        assert job
        wait_until(functools.partial(_has_ended, job), "the Jobs end", _PODS_WAIT_S, longest_pause_s=1.0, describe=logs)
        assert job.returncode == 0, logs()
    archive = run["page"].execute("tidemill", "export", "/runs/own", "--out", "-")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tmp_path, filter="data")
    assert {"README.md", "config.yaml"} <= {path.name for path in (tmp_path / "own-policy").iterdir()}
    assert "denied" not in run["page"].log.lower()
    for name in ("page", "actor-0", "actor-1", "replay-0", "replay-1", "paramserver-0"):
        assert run[name].end() == 0, run[name].log
    assert "Traceback" not in logs()
