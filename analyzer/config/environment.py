"""Values from environment variables and secret files: `GATELOCK_KAFKA__GROUP_ID`, or a file of that name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.pydantic_errors import SECTIONS, unknown_key
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.kernel.secrets import SECRET_BYTES_MAX

PREFIX = "GATELOCK_"
NESTED = "__"
SECRETS_DIRS = ("/run/secrets",)  # of Docker and Kubernetes


class EnvironmentValues(EnvSettingsSource):
    """A settings source that reads `values` instead of the process's environment."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name.lower(): value for name, value in values.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """The JSON in `value`; other text as it is, so that it becomes a fault like any other."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def variables() -> dict[str, str]:
    """The environment variables with our prefix."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}


def secrets_dir() -> Path | None:
    """The folder of secret files: the configured one, systemd's, or the usual one; None without any."""
    configured = os.environ.get("GATELOCK_SECRETS_DIR") or os.environ.get("CREDENTIALS_DIRECTORY")
    if configured:
        return Path(configured)
    return next((path for path in map(Path, SECRETS_DIRS) if path.is_dir()), None)


def secret_files() -> dict[str, Path]:
    """The files with our prefix, by name. Other files in the folder are not opened.

    Raises OSError when a configured folder cannot be read.
    """
    folder = secrets_dir()
    if folder is None:
        return {}
    return {path.name: path for path in sorted(folder.iterdir()) if path.name.upper().startswith(PREFIX)}


def secrets() -> dict[str, str]:
    """The contents of the secret files, by name. Raises OSError and UnicodeDecodeError."""
    contents = {}
    for name, path in secret_files().items():
        with path.open("rb") as file:
            contents[name] = file.read(SECRET_BYTES_MAX).decode().rstrip("\r\n")
    return contents


def overrides() -> dict[KeyPath, str]:
    """Keys that a variable or secret file sets, with its name; a variable precedes a secret file."""
    files = {_key(name): f"secret file {path}" for name, path in secret_files().items()}
    return files | {_key(name): f"environment {name}" for name in variables()}


def unknown_variables() -> Iterator[KeyFault]:
    """Faults of variables and secret files that contain `__` and name no table.

    Without `__`, a variable with our prefix may belong to another program, or name the file itself.
    """
    for name in (*variables(), *secret_files()):
        path = _key(name)
        if len(path) > 1 and path[0] not in SECTIONS:
            fault = unknown_key(path[:1])
            yield KeyFault(path, fault.what, fault.cure)


def _key(name: str) -> KeyPath:
    return tuple(name[len(PREFIX) :].lower().split(NESTED))
