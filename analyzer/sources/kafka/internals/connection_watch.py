"""Connections that report why they fail (feature "failure-reasons").

kafka-python tries to connect again and again and reports "Unable to bootstrap" in the end; the reason is
known to the connection alone. Import it only where the feature is supported.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager

from analyzer.sources.kafka.internals.class_swap import swap_class
from analyzer.sources.kafka.internals.interfaces import ConnectionFailures


class WatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """A manager whose connections report their errors to `failures`."""

    failures: ConnectionFailures
    watched: WeakSet[KafkaConnection]

    def get_connection(self, *args: Any, **kwargs: Any) -> KafkaConnection:
        connection = super().get_connection(*args, **kwargs)
        if connection not in self.watched:
            self.watched.add(connection)
            connection.init_future.add_callback(lambda _: self.failures.clear())
            connection.init_future.add_errback(self.failures.note)
            connection.close_future.add_errback(self.failures.note)
        return connection


def watch_connections(client: KafkaNetClient, failures: ConnectionFailures) -> None:
    """Makes the connections that `client` opens from now on report their errors to `failures`."""
    manager = client._manager
    if swap_class(manager, KafkaConnectionManager, WatchedConnectionManager):
        manager.failures, manager.watched = failures, WeakSet()
