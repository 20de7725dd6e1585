"""The histogram of policy lag."""

from __future__ import annotations

import numpy as np

from tidemill.services.learner.status.metrics import PolicyLagHistogram


def test_items_are_counted_by_their_lag() -> None:
    """Lags 0, 3, 7 and 20,000: 1 is at most 0, 2 at most 3, 3 at most 10, all at most infinity."""
    histogram = PolicyLagHistogram()
    histogram.observe(np.array([20_010.0, 20_007.0]), 20_010)
    histogram.observe(np.array([20_003.0, 10.0]), 20_010)
    (family,) = histogram.collect()
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert (found["0.0"], found["2.0"], found["3.0"], found["10.0"], found["+Inf"]) == (1, 1, 2, 3, 4)
    assert found["tidemill_learner_policy_lag_items_versions_sum"] == 20_010
    assert found["tidemill_learner_policy_lag_items_versions_count"] == 4


def test_parameters_newer_than_the_learner_knows_of_have_no_lag() -> None:
    """An actor may have a version before its acknowledgement has come back."""
    histogram = PolicyLagHistogram()
    histogram.observe(np.array([5.0]), 4)
    (family,) = histogram.collect()
    assert next(sample.value for sample in family.samples if sample.labels.get("le") == "0.0") == 1
