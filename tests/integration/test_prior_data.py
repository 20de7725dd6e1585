"""The demonstrations of examples/prior_data, as its page says to write them."""

from __future__ import annotations

from pathlib import Path

from benchmarks import prior_data
from tests.support.replay_service import local_server
from tidemill.config.load import load_run
from tidemill.envs.make import spec_of
from tidemill.replay import ReplayClient
from tidemill.rl.settings.registry import stored_columns

_CONFIG = Path(prior_data.__file__).parents[1] / "examples" / "prior_data" / "mountain_car.yaml"


def test_each_step_is_an_item_with_the_columns_of_the_run() -> None:
    """Every transition can be drawn, the last one of an episode too, and the columns are those of the example's run."""
    with local_server() as server:
        steps, mean = prior_data.demonstrations().write(server.address, 2)
        with ReplayClient(server.address) as client:
            (found,) = client.list_tables()
    assert mean > 85  # 100 at the goal, less what the pushes cost
    assert found.items == steps > 100
    config, _ = load_run(_CONFIG, {})
    assert stored_columns(config.agent, spec_of(config.env)) == found.config.signature
    assert found.config.max_item_steps == config.agent.window(1).length
