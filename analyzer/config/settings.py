"""The configuration: one TOML file, overridden by the environment and by secret files."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from analyzer.config import environment as named
from analyzer.config.checks import ParsedTables, complaints
from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid, KeyFault, ValueOrigins, placed
from analyzer.config.diagnostics.partial_tables import salvage
from analyzer.config.diagnostics.pydantic_errors import TranslatedErrors, heard, unknown
from analyzer.config.diagnostics.toml_positions import lines_of
from analyzer.config.kafka_options.translation import respelt
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.database import DatabaseTable
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import PolicyTable
from analyzer.config.tables.sources import SourceTable
from analyzer.core.judging.plan import Plan, plan_of
from analyzer.core.records.mapping import SourceMapping
from analyzer.errors import AnalyzerError

FILES = (Path("gatelock.toml"), Path("/etc/gatelock/gatelock.toml"))
FILE_BYTES_MAX = 1 << 20
AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


class ConfigMissing(AnalyzerError):
    """The file that was asked for is not there."""


class Complained(Exception):
    """Inside pydantic: neither of its own errors nor a ValueError, so that it passes through whole."""

    def __init__(self, complaints: list[KeyFault], document: Mapping[str, object]) -> None:
        super().__init__(len(complaints))
        self.complaints = complaints
        self.document = document


class Settings(BaseSettings):
    """Everything that is configured, checked as a whole; nothing changes after it was read.

    Keyword arguments are what a file says, of Kafka in our own words: the environment and secret files go
    before them.
    """

    model_config = SettingsConfigDict(
        env_prefix=named.PREFIX,
        env_nested_delimiter=named.NESTED,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    database: DatabaseTable = Field(default_factory=DatabaseTable)
    kafka: KafkaTable = Field(default_factory=KafkaTable)
    analyzer: AnalyzerTable = Field(default_factory=AnalyzerTable)
    sources: tuple[SourceTable, ...] = ()
    meters: tuple[MeterTable, ...] = ()
    policies: tuple[PolicyTable, ...] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment first, then secret files, then what was handed in: the file."""
        return (
            named.EnvironmentValues(settings_cls, named.environment()),
            named.EnvironmentValues(settings_cls, named.secrets()),
            init_settings,
        )

    @model_validator(mode="wrap")
    @classmethod
    def _with_every_fault_at_once(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        settings, found = None, TranslatedErrors([], frozenset())
        try:
            settings = handler(raw)
        except ValidationError as error:
            found = heard(error)
        # What is wrong with a key need not be said again by what depends on it.
        more = [each for each in complaints(_parts(raw)) if not found.covers(each.at)]
        if settings is None or more:
            raise Complained([*found.complaints, *more], raw)
        return settings

    def mappings(self) -> dict[str, SourceMapping]:
        """How the records of each source are read, by the source's name."""
        added_up = frozenset(meter.field for meter in self.meters if meter.field is not None)
        return {source.name: source.mapping(added_up) for source in self.sources}

    def plan(self) -> Plan:
        """What is counted and what is judged."""
        asked = [grouping for source in self.sources for grouping in source.groupings]
        return plan_of(
            asked, [meter.meter() for meter in self.meters], [each.quota() for each in self.policies]
        )


def find(given: Path | None) -> Path | None:
    """The file to read: the one given, `$GATELOCK_CONFIG`, here, or the system's; None without any.

    Raises ConfigMissing when a file that was asked for is not there.
    """
    asked = given or (Path(os.environ["GATELOCK_CONFIG"]) if os.environ.get("GATELOCK_CONFIG") else None)
    if asked is None:
        return next((path for path in FILES if path.is_file()), None)
    if not asked.is_file():
        what = "is no file" if asked.exists() else "there is no such file"
        raise ConfigMissing(f"{asked}: {what}; name one with --config or $GATELOCK_CONFIG")
    return asked


def load(file: Path | None) -> Settings:
    """The settings of `file`, the environment and secret files. Raises Faulty with all that is wrong."""
    shown = "no file" if file is None else str(file)
    text = "" if file is None else _text_of(file)
    document = _document(text, shown)
    try:
        origins = ValueOrigins(shown, lines_of(text), named.set_elsewhere())
        # Names with an underscore in front would be taken as arguments of pydantic-settings.
        theirs = {key: value for key, value in document.items() if not key.startswith("_")}
        found = [*named.strangers(), *(unknown((key,)) for key in document.keys() - theirs.keys())]
        if isinstance(theirs.get("kafka"), dict):
            theirs["kafka"], wrong = respelt(theirs["kafka"])
            found += wrong
        found += named.misspelt(Settings)
        settings = Settings(**theirs)
    except Complained as complained:
        found += complained.complaints
        document = dict(complained.document)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(
            [ConfigFault("secret files", None, "the folder", str(error), "check who may read it")]
        ) from error
    else:
        if not found:
            return settings
    faults = {placed(each, origins, document): None for each in found}
    raise ConfigInvalid(sorted(faults, key=lambda fault: (fault.line is None, fault.line or 0)))


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigInvalid(
                [ConfigFault(str(file), None, "the file", "is larger than 1 MB", "name a configuration")]
            )
        return raw.decode()
    except OSError as error:
        cure = "check the path and who may read it"
        raise ConfigInvalid(
            [ConfigFault(str(file), None, "the file", f"cannot be read: {error.strerror}", cure)]
        ) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid(
            [ConfigFault(str(file), line, "the file", "is not UTF-8", "save it as UTF-8")]
        ) from error


def _document(text: str, shown: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        said = str(error)
        at = AT_LINE.search(said)
        line = int(at[1]) if at else text.count("\n") + 1
        what = f"is no TOML: {AT_LINE.sub('', said)}"
        cure = (
            "text stands between quotation marks, a table's name in brackets, each pair on a line of its own"
        )
        raise ConfigInvalid([ConfigFault(shown, line, "the file", what, cure)]) from error


def _parts(raw: Mapping[str, Any]) -> ParsedTables:
    def each(table: str, model: type[Any]) -> dict[int, Any]:
        items = raw.get(table, ())
        listed = items if isinstance(items, (list, tuple)) else ()
        salvaged = {at: salvage(model, item) for at, item in enumerate(listed)}
        return {at: found for at, found in salvaged.items() if found is not None}

    return ParsedTables(
        kafka=salvage(KafkaTable, raw.get("kafka")) or KafkaTable(),
        analyzer=salvage(AnalyzerTable, raw.get("analyzer")) or AnalyzerTable(),
        sources=each("sources", SourceTable),
        meters=each("meters", MeterTable),
        policies=each("policies", PolicyTable),
    )
