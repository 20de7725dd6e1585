"""The replay service's unary calls, typed."""

from __future__ import annotations

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import ArrayLike, NDArray

from tidemill.closing import Closing
from tidemill.errors import FailedPrecondition, InvalidArgument, Unavailable
from tidemill.replay.argument_types import check_address, check_deadline, check_range, check_type
from tidemill.replay.table_config import TableConfig, TableDescription, TableUpdate
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.wire import pack_config, pack_update, unpack_description
from tidemill.rpc.channel import DEADLINE_S, open_channel
from tidemill.rpc.fork import Reopened
from tidemill.rpc.status import translated

_EXPLAIN_S = 1.0


class ReplayClient(Reopened, Closing):
    """Tables of one replay service: create, describe, change, reset, drop, set priorities, delete.

    Every method raises `Unavailable` when the service cannot be reached or does not answer within `deadline_s`,
    and otherwise the `TidemillError` that the service answered. Safe to call from several threads. In a process forked
    from the one that made it every call raises `FailedPrecondition`; pickled, it is opened again where it arrives.

    Example:
        >>> import tidemill
        >>> spec = tidemill.EnvSpec(observation_shape=(2,), observation_dtype="float32", num_actions=3)
        >>> uniform = tidemill.SelectorConfig(tidemill.SelectorKind.UNIFORM)
        >>> table = tidemill.TableConfig(
        ...     "demo", tidemill.signature_of(spec), uniform, max_items=1000, max_item_steps=2
        ... )
        >>> with tidemill.ReplayClient("127.0.0.1:7401") as replay:
        ...     replay.create_table(table)
        ...     [table.config.name for table in replay.list_tables()]
        ...     replay.describe_table("demo").items
        True
        ['demo']
        0
    """

    def __init__(self, address: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Open a channel; it connects on first use."""
        check_address(address)
        check_deadline("deadline_s", deadline_s)
        self._address = address
        self._deadline_s = deadline_s
        self._channel = open_channel(address)
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)

    def create_table(self, config: TableConfig, *, redeclare: bool = False) -> bool:
        """Create a table; return False when an equal one existed.

        Also False after the connection broke and the call was repeated, if its first try had created the table.

        Args:
            config: Its configuration.
            redeclare: Whether a table that differs in nothing but `max_items`, `max_bytes`, `rate_limiter` and
                `max_times_sampled` takes those of `config`. A value that `update_table` changed stays where `config`
                has the value from before.

        Raises:
            AlreadyExists: the name has another configuration.
        """
        check_type("config", config, TableConfig, "a TableConfig")
        request = pb.CreateTableRequest(config=pack_config(config), redeclare=redeclare)
        with translated():
            return self._stub.CreateTable(request, timeout=self._deadline_s).created

    def list_tables(self) -> tuple[TableDescription, ...]:
        """Return every table in order of name."""
        with translated():
            response = self._stub.ListTables(pb.ListTablesRequest(), timeout=self._deadline_s)
        return tuple(unpack_description(table) for table in response.tables)

    def describe_table(self, name: str) -> TableDescription:
        """Return one table. NotFound: no such table."""
        with translated():
            response = self._stub.DescribeTable(pb.DescribeTableRequest(name=_named(name)), timeout=self._deadline_s)
        return unpack_description(response.table)

    def update_table(self, name: str, update: TableUpdate) -> TableDescription:
        """Change a table while it is in use, and return it as it is then; clients create it as before.

        Raises:
            InvalidArgument: a value is out of range, by itself or beside the others; nothing was changed.
            NotFound: no such table.
        """
        check_type("update", update, TableUpdate, "a TableUpdate, such as TableUpdate(max_items=1000)")
        with translated():
            response = self._stub.UpdateTable(pack_update(_named(name), update), timeout=self._deadline_s)
        return unpack_description(response.table)

    def reset_table(self, name: str) -> int:
        """Remove every item; return how many there were. NotFound: no such table."""
        with translated():
            return self._stub.ResetTable(pb.ResetTableRequest(name=_named(name)), timeout=self._deadline_s).removed

    def drop_table(self, name: str) -> int:
        """Remove a table, its items and its configuration; return how many items there were.

        Programs that write to it or sample it are not asked: they create it again, except writers with `create=False`.

        Raises:
            NotFound: no such table.
        """
        with translated():
            return self._stub.DropTable(pb.DropTableRequest(name=_named(name)), timeout=self._deadline_s).removed

    def update_priorities(
        self,
        table: str,
        keys: ArrayLike,
        priorities: ArrayLike,
        fencing_token: int = 0,
        *,
        deadline_s: float | None = None,
    ) -> int:
        """Set priorities [N] of items by key [N]; return how many keys were in the table.

        Args:
            table: Name of the table.
            keys: Keys of the items, [N].
            priorities: Their new priorities, [N].
            fencing_token: Of the learner that writes, see `ParamsClient.acquire_fencing_token`; 0 for none.
            deadline_s: Longest wait for the answer; None for the client's.

        Raises:
            InvalidArgument: a priority is above 1e39 or below `TableConfig.least_priority`, or keys are not integers;
                none was set.
            FailedPrecondition: the table has seen a newer fencing token; none was set.
            NotFound: no such table.
        """
        request = pb.UpdatePrioritiesRequest(
            table=_named(table),
            keys=checked_keys(keys).tolist(),
            priorities=np.asarray(priorities, dtype=np.float64).tolist(),
            fencing_token=fencing_token,
        )
        with translated():
            timeout_s = self._deadline_s if deadline_s is None else deadline_s
            return self._stub.UpdatePriorities(request, timeout=timeout_s).updated

    def begin_update_priorities(
        self, table: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64], fencing_token: int = 0
    ) -> grpc.Future[pb.UpdatePrioritiesResponse]:
        """Send what `update_priorities` sends without waiting for the answer; its result may raise an RpcError."""
        request = pb.UpdatePrioritiesRequest(
            table=table, keys=keys.tolist(), priorities=priorities.tolist(), fencing_token=fencing_token
        )
        return self._stub.UpdatePriorities.future(request, timeout=self._deadline_s)

    def delete_items(self, table: str, keys: ArrayLike) -> int:
        """Remove items by key [N]; return how many were in the table. NotFound: no such table."""
        request = pb.DeleteItemsRequest(table=_named(table), keys=checked_keys(keys).tolist())
        with translated():
            return self._stub.DeleteItems(request, timeout=self._deadline_s).deleted

    def delete_matching_items(
        self,
        table: str,
        *,
        actor_id: str = "",
        env_index: int | None = None,
        min_age: int = 0,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> int:
        """Remove the items that meet every condition given; return how many there were.

        Args:
            table: Name of the table.
            actor_id: Who wrote them, in this or an earlier run of the actor; empty for anyone.
            env_index: In which of the actor's environments; None for any.
            min_age: How many items, at least, were inserted into the table after them.
            since_s: Unix time, in seconds, from which on they came; None for any. See `export_table`.
            until_s: Unix time before which they came; None for any.

        Raises:
            InvalidArgument: no condition is given, one is out of range, or the actor has no such environment.
            FailedPrecondition: a time is given, and the server does not know when any item of the table came.
            NotFound: no such table, or no streams of the actor are known.
        """
        for field, value, most in (("env_index", env_index, 2**32 - 1), ("min_age", min_age, 2**63 - 1)):
            if value is not None:
                check_range(field, value, 0, most)
        self.check_times(table, since_s, until_s)
        request = pb.DeleteMatchingItemsRequest(
            table=_named(table),
            actor_id=actor_id,
            env_index=env_index,
            min_age=min_age,
            since_s=since_s,
            until_s=until_s,
        )
        with translated():
            return self._stub.DeleteMatchingItems(request, timeout=self._deadline_s).deleted

    def check_times(self, table: str, since_s: float | None, until_s: float | None) -> None:
        """Check that the server can tell which items of a table came in a range of time, if one is given.

        One of an earlier release would not refuse a request with such a range, but take it for one without.

        Raises:
            FailedPrecondition: it cannot.
            NotFound: no such table.
        """
        if (since_s is not None or until_s is not None) and not self.describe_table(table).timed_from_s:
            raise FailedPrecondition(
                f"the server at {self._address} has no insertion times for table {table!r}: no item was inserted "
                "since it began to record them"
            )

    def checkpoint(self) -> int:
        """Write priorities and counters to disk; return the snapshot's number. An in-memory service refuses."""
        with translated():
            return self._stub.Checkpoint(pb.CheckpointRequest(), timeout=self._deadline_s).snapshot

    def wait_for_ready(self, timeout_s: float) -> None:
        """Wait until the service answers. Unavailable: it did not within `timeout_s` seconds; the message says why."""
        check = health_pb2_grpc.HealthStub(self._channel).Check  # needs no token
        try:
            with translated():
                check(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
        except Unavailable:
            try:
                with translated():
                    check(health_pb2.HealthCheckRequest(), timeout=_EXPLAIN_S)  # does not wait, but fails with a reason
            except Unavailable as why:
                message = f"no replay service at {self._address} within {timeout_s:g} s: {why}"
                raise Unavailable(message) from None

    def close(self) -> None:
        """Close the channel. May be called twice."""
        self._channel.close()


def _named(table: str) -> str:
    """Return the name of a table. TypeError: it is something else."""
    check_type("table", table, str, "the name of a table, as TableConfig.name")
    return table


def checked_keys(keys: ArrayLike) -> NDArray[np.uint64]:
    """Return keys as integers; a float cannot hold them, so it is refused rather than rounded."""
    array = np.asarray(keys)
    if array.size and array.dtype.kind not in "ui":
        raise InvalidArgument(f"keys have dtype {array.dtype}, must be integers")
    return array.astype(np.uint64)
