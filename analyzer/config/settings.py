"""The configuration: one TOML file, overridden by secret files and environment variables.

All faults are reported at once. Pydantic validates each table; checks between tables run on the valid part of
what it read, so that one fault does not hide another.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from analyzer.billing.witness import witness_opener
from analyzer.config import environment
from analyzer.config.checks import cross_table_faults
from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid, KeyFault, ValueOrigins, locate
from analyzer.config.diagnostics.partial_tables import valid_part
from analyzer.config.diagnostics.pydantic_errors import TranslatedErrors, translate_errors, unknown_key
from analyzer.config.diagnostics.toml_positions import key_lines
from analyzer.config.parsed_tables import ParsedTables
from analyzer.config.tables.alerts import AlertingTable, AlertTable
from analyzer.config.tables.analyzer import AnalyzerTable, PrivacyTable
from analyzer.config.tables.billing import BillingTable
from analyzer.config.tables.database import DatabaseTable
from analyzer.config.tables.delay_limits import DelaysTable
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.limit_overrides import ExemptTable, OverrideTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.named_values import GroupingTable
from analyzer.config.tables.policies import AnyPolicyTable, table_class
from analyzer.config.tables.retention import RetentionTable
from analyzer.config.tables.sources import SourceTable
from analyzer.counting.records.columns import ADDRESS
from analyzer.counting.records.formats import with_default_fields
from analyzer.kernel.database.chain import Signer
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.refused_values import quote
from analyzer.plan.derived_meters import derived_meter
from analyzer.plan.mapping import AddressField, SourceMapping, TextField
from analyzer.plan.meter_units import Unit
from analyzer.plan.meters import REQUESTS, Meter
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import StatedOverride
from gatekeeper.identity import DIGEST_CHARS, PREFIX6, address_of, is_name, typed

FILES = (Path("gatelock.toml"), Path("/etc/gatelock/gatelock.toml"))
FILE_BYTES_MAX = 1 << 20
STATED_BY_CLIENTS = ("policies", "meters", "groupings")
JUDGING = ("policies", "overrides", "exempt")  # tables that a file of policies replaces, present or not
AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


class ConfigMissing(AnalyzerError):
    """The configured file does not exist."""


class FaultsFound(Exception):
    """Carries all faults out of pydantic, which would wrap its own errors and ValueErrors."""

    def __init__(self, faults: list[KeyFault], document: Mapping[str, object]) -> None:
        super().__init__(len(faults))
        self.faults = faults
        self.document = document


DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_CHARS}}}")


class Settings(BaseSettings):
    """The whole configuration, checked and immutable.

    Keyword arguments are the tables of a file, with Kafka's options under our names. Environment variables
    and secret files override them.
    """

    model_config = SettingsConfigDict(
        env_prefix=environment.PREFIX,
        env_nested_delimiter=environment.NESTED,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    database: DatabaseTable = Field(default_factory=DatabaseTable)
    kafka: KafkaTable = Field(default_factory=KafkaTable)
    analyzer: AnalyzerTable = Field(default_factory=AnalyzerTable)
    privacy: PrivacyTable = Field(default_factory=PrivacyTable)
    delays: DelaysTable = Field(default_factory=DelaysTable)
    billing: BillingTable = Field(default_factory=BillingTable)
    retention: RetentionTable = Field(default_factory=RetentionTable)
    sources: tuple[SourceTable, ...] = ()
    groupings: tuple[GroupingTable, ...] = ()
    meters: tuple[MeterTable, ...] = ()
    policies: tuple[AnyPolicyTable, ...] = ()
    overrides: tuple[OverrideTable, ...] = ()
    exempt: tuple[ExemptTable, ...] = ()
    alerting: AlertingTable = Field(default_factory=AlertingTable)
    alerts: tuple[AlertTable, ...] = ()

    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def document(self) -> Mapping[str, Any]:
        """The tables of the file, before variables and secret files; empty for settings of no file."""
        return self._document

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Precedence: environment variables, secret files, the file."""
        return (
            environment.EnvironmentValues(settings_cls, environment.variables()),
            environment.EnvironmentValues(settings_cls, environment.secrets()),
            init_settings,
        )

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validates the tables, then their agreement. Raises FaultsFound with the faults of both."""
        settings, translated = None, TranslatedErrors([], frozenset())
        try:
            settings = handler(raw)
        except ValidationError as error:
            translated = translate_errors(error, raw)
        # A key that is invalid by itself gets no second fault from a check that depends on it.
        more = [fault for fault in cross_table_faults(_valid_tables(raw)) if not translated.covers(fault.at)]
        if settings is None or more:
            raise FaultsFound([*translated.faults, *more], raw)
        return settings

    def signer(self) -> Signer:
        """Key and witness of the acts that bills take as given."""
        billing = self.billing
        witness = None if billing.witness is None else witness_opener(billing.witness, self.kafka.client())
        return Signer(billing.key, billing.earlier_keys, witness)

    def mappings(self) -> dict[str, SourceMapping]:
        """The mapping of each source's records, by the source's name."""
        metered = frozenset(meter.number_field for meter in self.meters if meter.number_field is not None)
        digest = self.analyzer.digest
        hidden = self.privacy.pseudonyms
        return {source.name: source.mapping(metered, digest, pseudonyms=hidden) for source in self.sources}

    def counted_name(self, caller: str) -> str:
        """The name that a caller is counted by: with the digest of its text, where its kind has one.

        An address is in its one spelling, cut as sources cut it. A name whose text is a digest already, or a
        network, is returned as it is.
        """
        kind, _, text = caller.partition(":")
        if kind == ADDRESS:
            return typed(kind, address_of(text, self._prefix6) or text)
        digest = self.analyzer.digest
        if digest is None or not is_name(text) or DIGEST.fullmatch(text):
            return caller
        fields = [mapping.fields.get(kind) for mapping in self.mappings().values()]
        has_digest = any(isinstance(field, TextField) and field.digest for field in fields)
        return typed(kind, digest.of(text)) if has_digest else caller

    @cached_property
    def _prefix6(self) -> int:
        """The bits of IPv6 addresses that sources count clients by: those of the first that has addresses."""
        fields = (with_default_fields(mapping).fields.get(ADDRESS) for mapping in self.mappings().values())
        return next((field.prefix6 for field in fields if isinstance(field, AddressField)), PREFIX6)

    def plan(self) -> Plan:
        """The plan that this file proposes: what is counted and judged, and how each source is read."""
        units = self.units()
        return make_plan(
            [
                *(grouping for source in self.sources for grouping in source.groupings),
                *self.billing.groupings,
            ],
            self._counted_meters(),
            [policy.policy(units.get(policy.meter)) for table in self.policies for policy in table.stated],
            self.mappings(),
            self._overrides(units),
            self.named_values,
        )

    def _counted_meters(self) -> list[Meter]:
        """The meters that the file states, and those that policies with `where` make of them."""
        stated = {meter.name: meter for meter in (REQUESTS, *(table.meter() for table in self.meters))}
        derived = [
            derived_meter(stated[table.meter], table.conditions) for table in self.policies if table.where
        ]
        return [*stated.values(), *derived]

    @property
    def named_values(self) -> dict[str, str]:
        """The field of each named value."""
        return {grouping.name: grouping.field for grouping in self.groupings}

    def _overrides(self, units: Mapping[str, Unit]) -> list[StatedOverride]:
        meters = {policy.name: policy.meter for table in self.policies for policy in table.of_periods}
        limits = [
            override.stated(units.get(meters.get(override.policy, "")), self.counted_name)
            for override in self.overrides
        ]
        return [*limits, *(exemption.stated(self.counted_name) for exemption in self.exempt)]

    def units(self) -> dict[str, Unit]:
        """The unit of each meter that does not hold whole numbers, by the meter's name."""
        fields = [source.fields for source in self.sources]
        meter_units = ((meter.name, meter.unit(fields)) for meter in self.meters)
        units = {name: unit for name, unit in meter_units if unit is not None}
        derived = {table.counted_meter: units.get(table.meter) for table in self.policies if table.where}
        return units | {name: unit for name, unit in derived.items() if unit is not None}


def find(option: Path | None) -> Path | None:
    """The file to read: `option`, $GATELOCK_CONFIG, ./gatelock.toml, or the system's; None without any.

    Raises ConfigMissing when a file that was named does not exist.
    """
    file = option or (Path(os.environ["GATELOCK_CONFIG"]) if os.environ.get("GATELOCK_CONFIG") else None)
    if file is None:
        return next((path for path in FILES if path.is_file()), None)
    if not file.is_file():
        problem = "is not a file" if file.exists() else "does not exist"
        raise ConfigMissing(f"{file}: {problem}; name one with --config or $GATELOCK_CONFIG")
    return file


def load(file: Path | None, completed_by: Path | None = None) -> Settings:
    """The settings of `file`, secret files and the environment. Raises ConfigInvalid with all faults.

    What `file` lacks is taken from `completed_by`, an entire configuration, except its policies: so a file
    may have nothing but policies and meters.
    """
    shown = "no file" if file is None else str(file)
    text = "" if file is None else _read_text(file)
    document = _parse(text, shown)
    if completed_by is not None:
        document = _completed(document, _parse(_read_text(completed_by), str(completed_by)))
    return _settings(document, text, shown)


def load_policies(text: str, base: Settings) -> Settings:
    """Returns `base` with the policies and meters of a text in place of those of its file.

    For texts of clients: it may have [[policies]], [[meters]] and [[groupings]] alone, so that it names no
    file and no address. Raises ConfigInvalid with all faults.
    """
    shown = "the text"
    document = _parse(text, shown)
    if foreign := sorted(document.keys() - set(STATED_BY_CLIENTS)):
        what = f"{', '.join(map(quote, foreign))} cannot be stated here"
        raise ConfigInvalid([ConfigFault(shown, None, foreign[0], what, "leave it to the configuration")])
    return _settings(_completed(document, base.document), text, shown)


def _settings(document: Mapping[str, Any], text: str, shown: str) -> Settings:
    """Returns the settings of a document, whose text has the lines of its keys. Raises ConfigInvalid."""
    try:
        origins = ValueOrigins(shown, key_lines(text), environment.overrides())
        # pydantic-settings takes names with a leading underscore as its own arguments.
        tables = {key: value for key, value in document.items() if not key.startswith("_")}
        all_faults = [
            *environment.unknown_variables(),
            *(unknown_key((key,)) for key in document.keys() - tables.keys()),
        ]
        settings = Settings(**tables)
    except FaultsFound as raised:
        all_faults += raised.faults
        document = dict(raised.document)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(
            [ConfigFault("secret files", None, "the folder", str(error), "check its path and permissions")]
        ) from error
    else:
        if not all_faults:
            settings._document = document
            return settings
    located = {locate(fault, origins, document): None for fault in all_faults}  # without duplicates, in order
    raise ConfigInvalid(sorted(located, key=lambda fault: (fault.line is None, fault.line or 0)))


def _completed(document: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document with what it lacks of another one; lists keep their indexes."""
    merged = {key: value for key, value in base.items() if key not in JUDGING} | dict(document)
    for section in ("meters", "groupings"):
        tables, base_tables = document.get(section, []), base.get(section, [])
        if isinstance(tables, list) and isinstance(base_tables, list):
            names = [table.get("name") for table in tables if isinstance(table, dict)]
            merged[section] = [*tables, *(table for table in base_tables if table.get("name") not in names)]
    return merged


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise _invalid_file(file, None, "is larger than 1 MB", "name a configuration with --config")
        return raw.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        cure = "check its path and permissions"
        raise _invalid_file(file, None, f"cannot be read: {error.strerror}", cure) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _invalid_file(file, line, "is not UTF-8", "save it as UTF-8") from error


def _parse(text: str, shown: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        message = str(error)
        match = AT_LINE.search(message)
        line = int(match[1]) if match else text.count("\n") + 1
        problem = f"is not valid TOML: {AT_LINE.sub('', message)}"
        # Without its value, which may be a secret.
        key, equals, _ = (text.splitlines() or [""])[min(line, text.count("\n") + 1) - 1].partition("=")
        if equals:
            problem += f", in the line of {quote(key.strip())}"
        cure = "put text in quotation marks, a table's name in brackets, and each key on a separate line"
        raise _invalid_file(shown, line, problem, cure) from error


def _invalid_file(file: Path | str, line: int | None, problem: str, cure: str) -> ConfigInvalid:
    return ConfigInvalid([ConfigFault(str(file), line, "the file", problem, cure)])


def _valid_tables(raw: Mapping[str, Any]) -> ParsedTables:
    def tables(section: str, model: Callable[[Any], type[Any]]) -> dict[int, Any]:
        items = raw.get(section, ())
        parts = {
            index: valid_part(model(item), item)
            for index, item in enumerate(items if isinstance(items, (list, tuple)) else ())
        }
        return {index: part for index, part in parts.items() if part is not None}

    return ParsedTables(
        kafka=valid_part(KafkaTable, raw.get("kafka")) or KafkaTable(),
        analyzer=valid_part(AnalyzerTable, raw.get("analyzer")) or AnalyzerTable(),
        privacy=valid_part(PrivacyTable, raw.get("privacy")) or PrivacyTable(),
        billing=valid_part(BillingTable, raw.get("billing")) or BillingTable(),
        retention=valid_part(RetentionTable, raw.get("retention")) or RetentionTable(),
        sources=tables("sources", lambda _item: SourceTable),
        groupings=tables("groupings", lambda _item: GroupingTable),
        meters=tables("meters", lambda _item: MeterTable),
        policies=tables("policies", table_class),
        overrides=tables("overrides", lambda _item: OverrideTable),
        alerting=valid_part(AlertingTable, raw.get("alerting")) or AlertingTable(),
        alerts=tables("alerts", lambda _item: AlertTable),
    )
