"""A rank that fails while the other will never answer; `tests.process.test_ranks_recover` starts both.

python -m tests.process.deserted_rank TIMEOUT_S
"""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist

from tidemill.services.learner.distributed.learner_group import RankInfo, StepVote, joined_group


def main() -> None:
    """Join the other rank; the second stays silent, and the first fails with an exchange in flight."""
    place, timeout_s = RankInfo.from_env(), float(sys.argv[1])
    with joined_group(place, torch.device("cpu"), timeout_s) as ranks:
        ranks.all_agree(StepVote(stop=False, pause=False, lacks_batch=False, largest_weight=0.0))
        if not place.is_first:
            threading.Event().wait(timeout_s)
            sys.exit("nobody ended it")
        dist.all_reduce(torch.ones(1), async_op=True)
        sys.stderr.write("fails now\n")
        raise RuntimeError


if __name__ == "__main__":
    main()
