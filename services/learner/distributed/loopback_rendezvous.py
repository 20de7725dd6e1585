"""Rendezvous of torchrun's agent and its ranks on one machine, over a store that listens on loopback only.

torchrun's own rendezvous, also with `--standalone`, listens on every interface, and whoever reaches its store can end
the ranks or change their messages.
"""

from __future__ import annotations

import datetime
import socket

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "tidemill-loopback"
"""Its name in `torchrun --rdzv-backend`, after `register`."""

_LOOPBACK = "127.0.0.1"
_TIMEOUT = datetime.timedelta(seconds=60)


class LoopbackRendezvous(RendezvousHandler):
    """The rendezvous of a single agent, which is always complete."""

    def __init__(self, run_id: str) -> None:
        """Open the store.

        Args:
            run_id: Name of the keys of this agent.
        """
        self._run_id = run_id
        with socket.create_server((_LOOPBACK, 0)) as listener:
            self._port: int = listener.getsockname()[1]
            # Given a listening socket, the store opens no other; it closes the one it is given.
            self._store = TCPStore(
                _LOOPBACK,
                self._port,
                is_master=True,
                timeout=_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks take the store as theirs, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return at once: there is no one to wait for."""
        bootstrap = RendezvousStoreInfo(_LOOPBACK, self._port)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, bootstrap)

    def is_closed(self) -> bool:
        """Return False: it ends with the agent."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other agent ever comes."""
        return 0

    def get_run_id(self) -> str:
        """Return the name of the agent's keys."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing; return that it worked."""
        return True


def register() -> None:
    """Make the backend known to torchrun. Once in a process."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id)
