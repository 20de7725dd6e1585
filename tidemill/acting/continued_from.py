"""The version of the parameters that a run continues from, for seeds that differ after a restart."""

from __future__ import annotations

from contextlib import closing, suppress

from tidemill.config.sections import ActorConfig, InferenceConfig
from tidemill.errors import Unavailable
from tidemill.params.client import ParamsClient
from tidemill.params.version import Version


def continued_from(config: ActorConfig | InferenceConfig) -> int:
    """Return the version as the launcher gave it, or the newest at the parameter server; 0 for a run that is new.

    A run is new until it has trained: its first version may be there before an actor is. It is 0, too, for an actor of
    an inference service that does not reach the parameter server.
    """
    if config.run.continued_from is not None:
        return config.run.continued_from
    versions: tuple[Version, ...] = ()
    with suppress(Unavailable), closing(ParamsClient(config.cluster.params)) as client:
        versions = client.list_versions().versions
    newest = max(versions, key=lambda version: version.version, default=None)
    if newest is None or (newest.version == 1 and not newest.metadata.learner_steps):
        return 0
    return newest.version
