"""The job that sends alerts: events become messages, and messages that are due are tried.

    route       events of the outbox into messages                     one transaction
    begin_try   note the try, and when there is another one            before it is made
    send        one request, mail or record; destinations side by side
    end         acknowledged or dead; or put off, with all messages to that destination

A kill between `send` and `end` repeats the message, under the same id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

import sqlalchemy as sa

from analyzer.alerts import message_rows, routing
from analyzer.alerts.channels import SendResult
from analyzer.alerts.contacts import contacts_named
from analyzer.alerts.destinations import Destination
from analyzer.alerts.message_rows import DueMessage
from analyzer.alerts.routing import DestinationOf
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.retry_pauses import retry_pause_s

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 3_600.0
UNKNOWN_WAIT_S = 300.0  # of messages to a name that this configuration does not have
UNKNOWN_GIVE_UP_S = 86_400.0
STEP_S = 5.0  # after which a step begins no other message to a destination
SENDERS_MAX = 8  # destinations that are tried at a time


class Deliverer:
    """Sends alerts, in steps of a job; must not be used by two threads at a time.

    Args:
        engine: The database.
        destinations: Those of the configuration.
        destination_of: Returns the destination of a contact.
        link: The page of alerts; "": no address of pages is configured.
        random: Returns a number from 0 to 1.
    """

    def __init__(
        self,
        engine: sa.Engine,
        destinations: Sequence[Destination],
        destination_of: DestinationOf,
        link: str,
        random: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._destinations = {destination.name: destination for destination in destinations}
        self._destination_of = destination_of
        self._link = link
        self._random = random
        self._mutex = threading.Lock()  # on SQLite senders would wait for each other in the database

    def step(self) -> int:
        """Routes events, and tries the messages that are due; returns how many of both. Raises StoreAway."""
        with writing(self._engine) as db:
            routed = routing.route(db, list(self._destinations.values()), self._destination_of)
        with reading(self._engine) as db:
            due = message_rows.due(db)
            contacts = contacts_named(db, {message.receiver for message in due})
        by_receiver: defaultdict[str, list[DueMessage]] = defaultdict(list)
        for message in due:
            by_receiver[message.receiver].append(message)
        known = self._destinations | {
            name: self._destination_of(contact) for name, contact in contacts.items()
        }
        return routed + self._send_all(by_receiver, known)

    def _send_all(
        self, by_receiver: Mapping[str, Sequence[DueMessage]], known: Mapping[str, Destination]
    ) -> int:
        if not by_receiver:
            return 0
        waiting = SimpleQueue[str]()
        for receiver in sorted(by_receiver):
            waiting.put(receiver)
        tried: list[int] = []
        errors: list[BaseException] = []

        def send() -> None:
            try:
                while True:
                    receiver = waiting.get_nowait()
                    tried.append(self._send_to(known.get(receiver), by_receiver[receiver]))
            except Empty:
                return
            except BaseException as error:  # noqa: BLE001 - raised by the thread of the job
                errors.append(error)

        # Not a pool: the process would wait for its threads at the end, for as long as a receiver hangs.
        threads = [
            threading.Thread(target=send, daemon=True, name="alerts")
            for _ in range(min(SENDERS_MAX, len(by_receiver)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(tried)

    def _send_to(self, destination: Destination | None, messages: Sequence[DueMessage]) -> int:
        """Tries messages to one destination, the oldest first, until one fails; returns how many it tried."""
        if destination is None:
            self._put_off_unknown(messages)
            return 0
        tried, end_s = 0, time.monotonic() + STEP_S
        try:
            for message in messages:
                tried += 1
                if not self._try(destination, message) or time.monotonic() > end_s:
                    break
        finally:
            destination.channel.close()
        return tried

    def _try(self, destination: Destination, message: DueMessage) -> bool:
        """Tries a message; returns whether the next one to its destination may be tried now."""
        pause_s = retry_pause_s(message.tries + 1, FIRST_WAIT_S, LONGEST_WAIT_S, self._random())
        with self._mutex, writing(self._engine) as db:
            now_ms = clock_ms(db)
            if not message_rows.begin_try(db, message.id, now_ms + round(pause_s * 1000)):
                return True
        try:
            result = destination.channel.send(message.message(self._link), now_ms)
        except Exception as bug:  # a message that cannot be made must not keep others from being sent
            log.exception("alert %s to %s cannot be made", message.id, destination.name)
            result = SendResult(False, f"internal error: {bug!r}"[:200], is_final=True)
        self._note(destination, message, result, pause_s)
        return result.is_accepted or result.is_final

    def _note(
        self, destination: Destination, message: DueMessage, result: SendResult, pause_s: float
    ) -> None:
        with self._mutex, writing(self._engine) as db:
            if result.is_accepted:
                message_rows.end(db, message.id, "sent", result.status, result.text)
                return
            now_ms = clock_ms(db)
            begun_ms = now_ms if message.begun_ms is None else message.begun_ms
            is_dead = result.is_final or now_ms - begun_ms >= destination.give_up_s * 1000
            due_ms = now_ms + round(max(pause_s, result.retry_after_s or 0.0) * 1000)
            if is_dead:
                message_rows.end(db, message.id, "dead", result.status, result.text)
            if not result.is_final:
                message_rows.put_off(db, message.id, message.receiver, result.status, result.text, due_ms)
        if is_dead:
            log.error(
                "alert %s to %s is dead: %s: send it again by `gatelock alerts resend %s --reason TEXT`",
                *(message.id, destination.name, result.text, message.id),
            )
        elif not message.tries:
            log.warning("alert %s to %s: %s; it is tried again", message.id, destination.name, result.text)

    def _put_off_unknown(self, messages: Sequence[DueMessage]) -> None:
        """Has messages wait for an analyzer that knows their destination, and gives up after a day."""
        error = "no destination of this name is configured"
        with self._mutex, writing(self._engine) as db:
            now_ms = clock_ms(db)
            for message in messages:
                if now_ms - message.made_ms >= UNKNOWN_GIVE_UP_S * 1000:
                    message_rows.end(db, message.id, "dead", 0, error)
                due_ms = now_ms + round(UNKNOWN_WAIT_S * 1000)
                message_rows.put_off(db, message.id, message.receiver, 0, error, due_ms)
