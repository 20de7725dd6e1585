"""Learners that torchrun starts together, beside the cluster of a test."""

from __future__ import annotations

from pathlib import Path

from tests.support.learner_cluster import LearnerCluster, Process
from tests.support.processes import children_of

RANKS = 2


def start_ranks(cluster: LearnerCluster, *overrides: str) -> Process:
    """Start two learners with torchrun, which starts them again up to three times."""
    return cluster.start_learner_process(
        *overrides, module="tidemill.services.learner.torchrun", before=(str(RANKS), "3")
    )


def workers(parent: int) -> list[int]:
    """Return the processes that torchrun started, rank 0 first."""
    found = []
    for child in children_of(parent):
        try:
            environ = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        ranks = [int(entry.partition(b"=")[2]) for entry in environ if entry.startswith(b"RANK=")]
        found += [(rank, child) for rank in ranks]
    return [child for _, child in sorted(found)]
