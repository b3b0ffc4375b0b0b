"""Settings of a server on any port, and its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings, load
from analyzer.kernel.database.engine import open_engine


@pytest.fixture
def settings(tmp_path: Path, migrated_url: str) -> Settings:
    file = tmp_path / "gatelock.toml"
    file.write_text(f'[database]\nurl = "{migrated_url}"\n[analyzer]\nhttp = "127.0.0.1:0"\n')
    return load(file)


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()
