"""The configuration of a running process, read again when its file changes or on a signal.

A thread looks at the file and reads it; the loop takes settings that are valid as a whole, or nothing:

    thread of the reader     has the file changed? -> read, check all of it -> refuse, or keep for the loop
    thread of the loop       take() -> propose the plan of the new settings, as at a start

So a slow disk delays no record, and a file that is refused changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.file_watch import FileWatch
from analyzer.config.settings import Settings
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.refused_values import quote
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.plan import Plan

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
STOP_S = 1.0
FAULTS_SHOWN_MAX = 5  # of a refused file, in one line
STREAM = ("topic", "file")  # keys of a source that decide which log is read
READING = ("start", "host")  # keys of a source that decide how it is followed, and change no mapping
DIGEST_KEYS = {"digest_secret", "digest_secret_file"}  # of [analyzer]: part of the mappings


class ReloadObserver(Protocol):
    """Receives what happened to a file that was read again, for /readyz and /metrics."""

    def configuration_accepted(self) -> None: ...
    def configuration_refused(self, reason: str) -> None: ...


class ConfigurationReader:
    """Reads the configuration again; `look` is called by one thread, `take` by the loop.

    Args:
        watch: Of the file, created before `running` was read from it.
        running: The settings with which the process was started.
        load: Reads the file, secret files and the environment, as at the start. Raises AnalyzerError.
        observer: Receives the outcome.
    """

    def __init__(
        self,
        watch: FileWatch,
        running: Settings,
        load: Callable[[], Settings],
        observer: ReloadObserver,
    ) -> None:
        self.refusal = ""  # why the file is refused, in one line; empty: it is not
        self._watch = watch
        self._running = running
        self._load = load
        self._observer = observer
        self._latest = running  # the last settings that were accepted
        self._is_requested = False
        self._taken = running
        self._mutex = threading.Lock()

    def look(self, *, is_requested: bool = False) -> None:
        """Reads the file if it has changed and its writer is done; in any case if `is_requested`."""
        has_changed = self._watch.has_changed()
        self._is_requested |= is_requested
        if not (has_changed or self._is_requested):
            return
        state = self._watch.state()
        settings, refusal = None, ""
        try:
            settings = self._load()
        except AnalyzerError as error:
            refusal = in_one_line(error)
        except Exception as bug:
            # Counting continues, as with any other file that cannot be used.
            log.exception("the configuration cannot be read, because of an internal error")
            refusal = f"internal error: {bug!r}"
        if not self._watch.is_read(state):
            return  # it was written meanwhile: the next look reads it
        self._is_requested = False
        if settings is None:
            self._refuse(refusal)
        else:
            self._accept(settings)

    @property
    def latest(self) -> Settings:
        """The last settings that were accepted."""
        return self._latest

    def take(self) -> Settings | None:
        """Returns the settings that were accepted since the last call; None without any."""
        with self._mutex:
            if self._latest is self._taken:
                return None
            self._taken = self._latest
            return self._taken

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        log.error("this configuration is refused, and the one before stays in force: %s", reason)
        self._observer.configuration_refused(reason)

    def _accept(self, settings: Settings) -> None:
        is_another = settings != self._latest
        if is_another:
            with self._mutex:
                self._latest = settings
        log.info("configuration read again: %s", "it has changed" if is_another else "nothing has changed")
        if waiting := at_next_start(self._running, settings):
            log.warning("changes of %s take effect at the next start", ", ".join(waiting))
        self.refusal = ""
        self._observer.configuration_accepted()


def in_one_line(error: AnalyzerError) -> str:
    """Returns the sentences of an error, those of `gatelock check` for a fault, without line ends."""
    if not isinstance(error, ConfigInvalid):
        return str(error)
    shown = ["; ".join(str(fault).split("\n    ")) for fault in error.faults[:FAULTS_SHOWN_MAX]]
    more = len(error.faults) - len(shown)
    return ". ".join([*shown, f"And {more} more: run `gatelock check`"] if more else shown)


def at_next_start(running: Settings, new: Settings) -> list[str]:
    """Returns the settings of `new` that differ from those of the start and take effect at the next one.

    Each as a file names it: "[kafka]", "http of [analyzer]", '[[sources]] "web"'.
    """
    changed = [
        f"[[{name}]]" if name == "alerts" else f"[{name}]"
        for name in ("database", "kafka", "billing", "retention", "alerting", "alerts")
        if getattr(running, name) != getattr(new, name)
    ]
    keys = type(new.analyzer).model_fields.keys() - DIGEST_KEYS
    changed += [
        f"{key} of [analyzer]"
        for key in sorted(keys)
        if getattr(running.analyzer, key) != getattr(new.analyzer, key)
    ]
    running_sources, new_sources = (
        {source.name: source for source in settings.sources} for settings in (running, new)
    )
    for name in sorted(running_sources.keys() | new_sources.keys()):
        title = f"[[sources]] {quote(name)}"
        old, source = running_sources.get(name), new_sources.get(name)
        if old is None or source is None or _differs(old, source, STREAM):
            changed.append(title)
        elif _differs(old, source, READING):
            changed += [f"{key} of {title}" for key in READING if _differs(old, source, (key,))]
    return changed


def plan_while_running(running: Settings, new: Settings, mappings: Mapping[str, SourceMapping]) -> Plan:
    """Returns what a process that follows the sources of `running` proposes when its file says `new`.

    A source whose log is not the followed one keeps its mapping in `mappings`, by which it is counted:
    the new mapping belongs to another log.
    """
    plan = new.plan()
    new_sources = {source.name: source for source in new.sources}
    return plan.with_sources(
        {
            source.name: plan.sources[source.name]
            if source.name in new_sources and not _differs(source, new_sources[source.name], STREAM)
            else mappings[source.name]
            for source in running.sources
        }
    )


def _differs(old: object, new: object, keys: tuple[str, ...]) -> bool:
    return any(getattr(old, key) != getattr(new, key) for key in keys)


@contextmanager
def reading_again(reader: ConfigurationReader, requests: SimpleQueue[bool]) -> Iterator[None]:
    """Has a thread look at the file each second, and read it at once for each True in `requests`.

    Signal handlers may write to a `SimpleQueue`. False ends the thread.
    """
    thread = threading.Thread(target=_look, args=(reader, requests), daemon=True, name="configuration")
    thread.start()
    try:
        yield
    finally:
        requests.put(False)
        thread.join(STOP_S)


def _look(reader: ConfigurationReader, requests: SimpleQueue[bool]) -> None:
    while True:
        try:
            is_requested = requests.get(timeout=LOOK_EVERY_S)
        except Empty:
            reader.look()
            continue
        if not is_requested:
            return
        reader.look(is_requested=True)
