"""The version of the parameters that a run continues from, for seeds that differ after a restart."""

from __future__ import annotations

from contextlib import closing

from tidemill.config.sections import ActorConfig, InferenceConfig
from tidemill.errors import TidemillError, Unavailable
from tidemill.logger import LateLogger
from tidemill.params.client import ParamsClient
from tidemill.params.version import Version

_log = LateLogger()


def continued_from(config: ActorConfig | InferenceConfig) -> int:
    """Return the version as the launcher gave it, or the newest at the parameter server; 0 for a run that is new.

    A run is new until it has trained: its first version may be there before an actor is. It is 0, too, where the
    parameter server is not reached or, for an actor of an inference service, which needs none, refuses the call.

    Raises:
        TidemillError: The parameter server refused the call, and there is no inference service.
    """
    if config.run.continued_from is not None:
        return config.run.continued_from
    versions: tuple[Version, ...] = ()
    try:
        with closing(ParamsClient(config.cluster.params)) as client:
            versions = client.list_versions().versions
    except Unavailable:
        pass
    except TidemillError as error:
        if not config.cluster.inference:
            raise
        message = "cannot ask the parameter server which version the run continues from, taking the run for new"
        _log.warning(message, address=config.cluster.params, reason=str(error))
    newest = max(versions, key=lambda version: version.version, default=None)
    if newest is None or (newest.version == 1 and not newest.metadata.learner_steps):
        return 0
    return newest.version
