"""A learner that waits for what the parameter server answers when the learner ends, however busy the machine is."""

from __future__ import annotations

from tests.support.waiting import WAIT_S
from tidemill.process import leave
from tidemill.services.learner import learner
from tidemill.services.learner.__main__ import main

if __name__ == "__main__":
    learner._LAST_PUBLISH_S = learner._FENCE_DEADLINE_S = WAIT_S
    leave(main())
