"""What Prometheus sees of a learner."""

from __future__ import annotations

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from tidemill.services.learner.lag import LagHistogram

_STEP_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

STEPS = Counter("tidemill_learner_steps_total", "Gradient steps this process has taken.")
ENV_STEPS = Gauge("tidemill_learner_env_steps", "Agent decisions stored by the replay service, all its lives together.")
PARAMS_VERSION = Gauge("tidemill_learner_params_version", "Newest version the parameter server acknowledged.")
WAIT_SECONDS = Counter(
    "tidemill_learner_wait_seconds_total", "Time the training thread took no step.", ["what"]
)  # what: `data` (the table or its rate limiter), `ranks` (other learners), `pause`, `checkpoint` (copying the state)
STAGE_SECONDS = Counter(
    "tidemill_learner_stage_seconds_total", "Time the threads of the learner worked, by what they did.", ["stage"]
)  # stage: `decode` and `copy` (decoder threads, together), `update` (the training thread)
BLOCKED_RATIO = Gauge(
    "tidemill_learner_blocked_ratio", "Share of the newest seconds that the training thread waited for data or ranks."
)
UPDATE_SECONDS = Histogram(
    "tidemill_learner_update_seconds", "Time of one gradient step as the host sees it.", buckets=_STEP_SECONDS
)
STALLED_SECONDS = Gauge("tidemill_learner_stalled_seconds", "Time since the newest gradient step or batch.")
BATCH_AGE_SECONDS = Gauge("tidemill_learner_batch_age_seconds", "Time from the newest batch's arrival to its use.")
POLICY_LAG = Gauge(
    "tidemill_learner_policy_lag_versions",
    "Newest version minus the mean version that chose the newest batch's actions.",
)
ITEM_POLICY_LAG = LagHistogram()
REGISTRY.register(ITEM_POLICY_LAG)
TABLE_ITEMS = Gauge("tidemill_learner_table_items", "Items in the table when the newest batch was drawn.")
SAMPLE_RECONNECTS = Counter("tidemill_learner_sample_reconnects_total", "Sample streams lost and opened again.")
PRIORITIES_DROPPED = Counter(
    "tidemill_learner_priorities_dropped_total",
    "New priorities not delivered because the replay service was away.",
)
DAMAGED_ITEMS = Counter(
    "tidemill_learner_damaged_items_total", "Items left out because their bytes could not be decoded."
)
CHECKPOINT_SECONDS = Histogram("tidemill_learner_checkpoint_seconds", "Time to write a checkpoint to disk.")
CHECKPOINT_FAILURES = Counter("tidemill_learner_checkpoint_failures_total", "Checkpoints that could not be written.")
CHECKPOINT_STEPS = Gauge("tidemill_learner_checkpoint_steps", "Gradient steps in the newest checkpoint.")
AGENT = Gauge("tidemill_learner_agent", "The agent's own metrics, such as losses.", ["name"])


def leave_out_what_rank_0_does() -> None:
    """Show no versions and no checkpoints: a rank that publishes and writes none would show that nothing is done."""
    of_rank_0 = (PARAMS_VERSION, POLICY_LAG, ITEM_POLICY_LAG, CHECKPOINT_SECONDS, CHECKPOINT_FAILURES, CHECKPOINT_STEPS)
    for collector in of_rank_0:
        REGISTRY.unregister(collector)
