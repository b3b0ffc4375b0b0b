"""`gatelock backup`: one consistent copy of the database, and the files that belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import Context

from analyzer.build import wall_ms
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, JsonOption, config_file, load_settings, open_database
from analyzer.faces.cli.output import outcome, say
from analyzer.kernel.database.revisions import head
from analyzer.kernel.sentences import plural

if TYPE_CHECKING:
    from analyzer.config.settings import Settings


def backup(
    context: Context,
    to: Annotated[Path, Option("--to", metavar="FOLDER", help="In which the backup gets a separate folder.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write the database, the configuration and the file of customers into a folder.

    Analyzers continue meanwhile: counts and offsets in the copy are of one moment. SQLite is copied by its
    backup API, PostgreSQL by `pg_dump`. The key of the digests, the witness, reports and logs are not in it:
    docs/backup.md says what to keep where. Exit code 2 if it cannot be written; nothing is left then.

    Example: gatelock backup --to /var/backups/gatelock
    """
    from analyzer.restore.database_copy import write_backup

    with reporting_errors(), open_database(context, config) as engine:
        settings, file = load_settings(context, config), config_file(context, config)
        beside = [path for path in (file, settings.billing.customers_file) if path is not None]
        try:
            written = write_backup(engine, to, beside, head(), wall_ms())
        except OSError as error:
            raise usage_error(f"--to {to}: {error.filename or to}: {error.strerror}") from error
        size = sum(entry.size for entry in written.files)
        sentence = f"{written.folder}: {plural(len(written.files), 'file')}, {size:,} bytes"
        fields = {
            "folder": str(written.folder), "files": [entry._asdict() for entry in written.files],
            "chain_entries": written.entries, "closed": dict(written.closed),
        }  # fmt: skip
        outcome(sentence, fields, as_json=json)
        for kept in _kept_elsewhere(settings):
            say(kept, err=json)


def _kept_elsewhere(settings: Settings) -> list[str]:
    """Sentences on what a restore needs and the backup lacks, and on what is too much in it."""
    billing = settings.billing
    sentences = []
    if billing.digest_key is not None:
        sentences.append(
            "the configuration in it has the key of the digests: a reader of the backup can sign; write the "
            "key into a file, and name that by [billing] digest_key_file"
        )
    elif billing.digest_key_file is not None:
        sentences.append("not in it: the key of the digests; keep it elsewhere")
    if billing.witness is not None:
        sentences.append(f"not in it: the witness {billing.witness}, which shows that a backup was restored")
    return sentences
