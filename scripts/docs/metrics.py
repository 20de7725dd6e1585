"""Write docs/reference/metrics.md from what the processes of a running cluster serve to Prometheus.

    python -m scripts.docs.metrics [--check]

A small cluster trains CartPole meanwhile: two replay shards, a parameter server, a learner, an inference service, an
actor and an evaluator. With `--check` nothing is written: it fails when the page is out of date.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from scripts.docs.generated import FOLDER, write_or_check
from tidemill.services.learner.status.metrics import GPU_ABOUT

PAGE = FOLDER / "metrics.md"
Families = dict[str, tuple[str, frozenset[str], str]]
"""Of one process: kind, labels and text of each metric by its name."""

_INTRODUCTION = """# Metrics

<!-- Written by `python -m scripts.docs.metrics` from a running cluster: change the texts in the code, then run it. -->

Read the metrics of a process, or let Prometheus scrape them. The first line of the process's log has the address
(`metrics=...`), which `SERVICE.server.metrics_address` sets:

```text
curl http://METRICS-ADDRESS/metrics
```

Names, kinds and labels are part of the interface: they change only with an entry in the changelog. Every metric
also has the labels `run` and `process` (`actor-3`).

Counters end with `_total`, times are in seconds, sizes in bytes. A histogram or summary `x` is served as `x_count`,
`x_sum` and, for a histogram, `x_bucket`. Some metrics appear only where they apply: `tidemill_resting`,
`tidemill_learner_gpu_*` on a GPU, and `tidemill_certificate_expires_timestamp_seconds` with TLS.
`tidemill_run_end_info` has a value once the run has ended, where its learner stays: on Kubernetes it is gone.
The `process_` and `python_` metrics of the Prometheus client are served as well.
"""
_SERVICES = ("replay", "paramserver", "learner", "actor", "inference", "evaluator")
_TITLES: Mapping[str, str] = {"every": "Every process", "paramserver": "Parameter server"}
_OWN = {"run", "process", "le", "quantile"}
_SELDOM: Mapping[str, set[str]] = {
    "grpc_server_undecodable_total": {"grpc_method", "grpc_service"},
    "tidemill_env_hangs_total": {"method"},
    "tidemill_evaluator_confirmations_total": {"outcome"},
    "tidemill_learner_source_age_seconds": {"source"},
    "tidemill_learner_source_items": {"source"},
    "tidemill_learner_source_ratio": {"source"},
    "tidemill_learner_source_samples_total": {"source"},
    "tidemill_run_end_info": {"end"},
    "tidemill_simulator_episodes_total": {"end"},
    "tidemill_simulator_refused_total": {"setting"},
}
"""Labels of what has counted nothing after a few seconds, and so shows none."""
_OF_GPU: Families = {
    f"tidemill_learner_{name}": ("gauge", frozenset({"gpu"}), about) for name, about in GPU_ABOUT.items()
}
"""Of a learner on a GPU, which this machine need not have."""
_TRAIN = (
    *("train", "--config", "cartpole_dqn", "--fresh", "--run.name", "metrics", "--run.target-return", "none"),
    *("--replay.shards", "2", "--launcher.inference", "1", "--launcher.actors", "1"),
    *("--inference.simulators", "1", "--inference.server.address", "127.0.0.1:17406"),
    *("--evaluator.episodes", "1", "--learner.checkpoint-every-s", "1"),
)
_BOUND_S = 120.0


def page() -> str:
    """Return the page."""
    by_service = cluster_families()
    by_service["learner"] |= _OF_GPU
    shared = set.intersection(*(set(families) for families in by_service.values()))
    parts = [_INTRODUCTION, *_table("every", {name: by_service["learner"][name] for name in shared})]
    for service in _SERVICES:
        own = {name: family for name, family in by_service[service].items() if name not in shared}
        parts += _table(service, own)
    return "\n".join(parts)


def _table(service: str, families: Families) -> Iterator[str]:
    yield f"## {_TITLES.get(service, service.capitalize())}\n"
    yield "| Name | Kind | Labels | |\n|---|---|---|---|"
    for name, (kind, labels, text) in sorted(families.items()):
        yield f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in sorted(labels))} | {text} |"
    yield ""


def cluster_families() -> dict[str, Families]:
    """Return the metrics that each service of a cluster has after a few seconds of training."""
    with tempfile.TemporaryDirectory(prefix="tidemill-metrics-") as folder:
        command = [str(Path(sys.executable).parent / "tidemill"), *_TRAIN, "--run.root", folder]
        with (Path(folder) / "output").open("wb") as output:
            cluster = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
        try:
            return _scraped(Path(folder) / "metrics")
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait(60)


def _scraped(run: Path) -> dict[str, Families]:
    """Scrape the processes of a run once its first checkpoint and evaluation are done."""
    deadline_s = time.monotonic() + _BOUND_S
    while not (list(run.glob("checkpoints/*.safetensors")) and (run / "scores.csv").exists()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no checkpoint and evaluation within {_BOUND_S:.0f} s")
        time.sleep(0.2)
    found: dict[str, Families] = {}
    for log in sorted(run.glob("logs/*.log")):
        service = re.split(r"[-.]", log.name)[0]
        address = re.findall(r" metrics=(\S+:\d+)", log.read_text(encoding="utf-8"))[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            found.setdefault(service, {}).update(_families(answer.read().decode()))
    return found


def _families(text: str) -> Families:
    families: Families = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith(("tidemill_", "grpc_")):
            samples: list[Sample] = family.samples
            labels = frozenset(label for sample in samples for label in sample.labels) - _OWN
            name = family.name + ("_total" if family.type == "counter" else "")
            families[name] = (family.type, labels | _SELDOM.get(name, set()), family.documentation)
    return families


def main() -> int:
    """Write or check the page; return the exit code."""
    return write_or_check(PAGE, page(), "python -m scripts.docs.metrics", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
