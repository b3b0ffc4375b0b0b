"""What the environment and secret files say: `GATELOCK_KAFKA__GROUP_ID`, or a file of that name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.pydantic_errors import SECTIONS, unknown
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.kafka_options.translation import respelt
from analyzer.config.secrets import SECRET_BYTES_MAX

PREFIX = "GATELOCK_"
NESTED = "__"
USUAL_DIRS = ("/run/secrets",)  # where Docker and Kubernetes put them


class EnvironmentValues(EnvSettingsSource):
    """Values under names like environment variables have, whoever keeps them."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name.lower(): value for name, value in values.items()}

    def __call__(self) -> dict[str, Any]:
        read = self.as_written()
        return (
            {**read, "kafka": respelt(read["kafka"]).table} if isinstance(read.get("kafka"), dict) else read
        )

    def as_written(self) -> dict[str, Any]:
        """The same, `[kafka]` in whatever client's words it is."""
        return super().__call__()

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """The JSON in `value`, or what is no JSON as it is: it becomes a fault like any other."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def misspelt(settings_cls: type[BaseSettings]) -> Iterator[KeyFault]:
    """What is wrong with the words in which the environment and secret files speak of Kafka.

    Raises OSError and UnicodeDecodeError.
    """
    for values in (environment(), secrets()):
        table = EnvironmentValues(settings_cls, values).as_written().get("kafka")
        if isinstance(table, dict):
            yield from respelt(table).complaints


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}


def secrets_dir() -> Path | None:
    """Where secret files are looked for: what the environment names, what systemd passes, the usual place."""
    named = os.environ.get("GATELOCK_SECRETS_DIR") or os.environ.get("CREDENTIALS_DIRECTORY")
    if named:
        return Path(named)
    return next((path for path in map(Path, USUAL_DIRS) if path.is_dir()), None)


def secret_files() -> dict[str, Path]:
    """Files that are named like our variables. Others in the folder are not ours to open.

    Raises OSError when the folder that was named cannot be read.
    """
    folder = secrets_dir()
    if folder is None:
        return {}
    return {path.name: path for path in sorted(folder.iterdir()) if path.name.upper().startswith(PREFIX)}


def secrets() -> dict[str, str]:
    """The files' contents. Raises OSError and UnicodeDecodeError."""
    found = {}
    for name, path in secret_files().items():
        with path.open("rb") as file:
            found[name] = file.read(SECRET_BYTES_MAX).decode().rstrip("\r\n")
    return found


def set_elsewhere() -> dict[KeyPath, str]:
    """Which keys are not the file's, and who sets them; the environment before secret files."""
    files = {_key(name): f"secret file {path}" for name, path in secret_files().items()}
    return files | {_key(name): f"environment {name}" for name in environment()}


def strangers() -> Iterator[KeyFault]:
    """Variables that are meant for us and lead nowhere: with two underscores, under no table of ours.

    Others with our prefix may be another program's, or name the file itself.
    """
    for name in (*environment(), *secret_files()):
        at = _key(name)
        if len(at) > 1 and at[0] not in SECTIONS:
            slip = unknown(at[:1])
            yield KeyFault(at, slip.what, slip.cure)


def _key(name: str) -> KeyPath:
    return tuple(name[len(PREFIX) :].lower().split(NESTED))
