"""Shows a cluster while it runs."""

from __future__ import annotations

import asyncio

from tidemill.services.launcher.cluster import Cluster
from tidemill.services.launcher.snapshot import Observer
from tidemill.services.launcher.supervisor import Outcome
from tidemill.services.launcher.view import View


async def run_shown(cluster: Cluster, observer: Observer, view: View, every_s: float) -> Outcome:
    """Run the cluster to its end with the view updated every `every_s` seconds; return how it ended."""

    async def update() -> None:
        restored = False
        while True:
            snapshot = await asyncio.to_thread(observer.take)
            view.show(snapshot)
            if snapshot.learner and snapshot.learner.restored and not restored:
                restored = True
                view.event(f"learner restored {snapshot.learner.restored}")
            await asyncio.sleep(every_s)

    updates = asyncio.create_task(update())
    try:
        return await cluster.run()
    finally:
        updates.cancel()
        await asyncio.gather(updates, return_exceptions=True)
        view.show(await asyncio.to_thread(observer.take))
