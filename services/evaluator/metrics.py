"""Metrics of the evaluator, scraped by Prometheus."""

from __future__ import annotations

import math

from prometheus_client import Counter, Gauge, Histogram

from tidemill.scores import Score

EPISODES = Counter("tidemill_evaluator_episodes_total", "Full episodes played, confirmations included.")
SECONDS = Histogram(
    "tidemill_evaluator_evaluation_seconds",
    "Duration of an evaluation.",
    buckets=(0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
RETURN = Gauge("tidemill_evaluator_return_mean", "Mean raw return of the newest evaluation.")
BEST_RETURN = Gauge("tidemill_evaluator_best_return_mean", "Largest mean raw return of the run.")
for gauge in (RETURN, BEST_RETURN):
    gauge.set(math.nan)  # 0 would be a score, for some games a good one
VERSION = Gauge("tidemill_evaluator_params_version", "Version of the parameters evaluated last.")
CONFIRMATIONS = Counter(
    "tidemill_evaluator_confirmations_total", "Confirmations on fresh episodes, by outcome.", ("outcome",)
)


def observe(score: Score, best_mean: float, seconds: float) -> None:
    """Count one evaluation."""
    EPISODES.inc(score.episodes)
    SECONDS.observe(seconds)
    RETURN.set(score.mean)
    BEST_RETURN.set(best_mean)
    VERSION.set(score.params_version)
