"""The chain of what a bill takes as given; see docs/decisions/0078.

An act appends its entry in its own transaction. Entries are never changed; each has an HMAC under a key
outside the database over its fields and the digest of the entry before, so that none can be changed, inserted
or left out by a user who has no key. The last ones can be cut off: a witness outside the database finds that.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol, get_args

import sqlalchemy as sa

from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import AT_COMMIT, ROWS_AT_ONCE, insert, reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import ChainCut, StoreRefused, WitnessAway
from analyzer.kernel.tables.chain_tables import chain_entries, chain_salts

log = logging.getLogger(__name__)

EntryKind = Literal[
    "plan", "gap", "retry", "left out", "correction", "closing", "deletion", "replay", "delivery", "restored"
]
KINDS = get_args(EntryKind)

SIGNER = "gatelock_signer"  # execution option of an engine
APPENDING = 0x6761_7465  # number of the advisory lock
SALT_BYTES = 16


class Tip(NamedTuple):
    """The last entry of a chain.

    Attributes:
        number: Of the entry; 0 without any.
        mac: Of the entry.
        restored: How often an operator has said that the database was restored: a chain that was is shorter,
            and newer. The last such entry has it, because a restore may lose those before.
    """

    number: int = 0
    mac: str = ""
    restored: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Orders the tips of one installation by time."""
        return self.restored, self.number

    def text(self) -> str:
        """Returns the tip as a witness stores it."""
        return json.dumps({"entries": self.number, "mac": self.mac, "restored": self.restored}) + "\n"

    @classmethod
    def parse(cls, text: str | bytes) -> Tip:
        """Returns the tip that `text` has written. Raises WitnessAway for any other text."""
        try:
            values = json.loads(text)
            return cls(int(values["entries"]), str(values["mac"]), int(values["restored"]))
        except (ValueError, KeyError, TypeError) as error:
            raise WitnessAway(f"what it has is not an entry of a chain: {text[:60]!r}") from error


class Witness(Protocol):
    """A place outside the database that remembers the last entry."""

    def seen(self) -> Tip | None:
        """Returns the newest tip that was noted; None before the first. Raises WitnessAway."""

    def note(self, tip: Tip) -> None:
        """Remembers a tip, unless a newer one is known. Raises WitnessAway."""


class Signer(NamedTuple):
    """The keys of entries, and their witness.

    Attributes:
        key: Signs.
        earlier: Keys that it has replaced.
        witness: Opens the witness; None without one.
    """

    key: DigestKey = DigestKey()
    earlier: tuple[DigestKey, ...] = ()
    witness: Callable[[], Witness] | None = None

    def known(self, fingerprint: str) -> DigestKey | None:
        """Returns the key with a fingerprint; None if it is not there."""
        keys = (self.key, *self.earlier, DigestKey())
        return next((key for key in keys if key.fingerprint == fingerprint), None)


class ChainEntry(NamedTuple):
    """An entry as it is stored."""

    number: int
    kind: str
    subject: str
    fields: str  # JSON
    at_ms: int
    key: str
    mac: str

    def digest(self) -> str:
        """Returns the digest of the whole entry, which the next one contains.

        So an entry by a key that is not there is proved by a later one whose key is.
        """
        return sha256(json.dumps(self, separators=(",", ":")).encode()).hexdigest()

    def mac_by(self, key: DigestKey, previous: str) -> str:
        """Returns the HMAC that the entry must have behind the one with the digest `previous`."""
        fields = sha256(self.fields.encode()).hexdigest()
        values = [self.number, self.kind, self.subject, fields, self.at_ms, self.key, previous]
        return key.of(json.dumps(values, separators=(",", ":")).encode())


def signed(engine: sa.Engine, signer: Signer) -> sa.Engine:
    """Returns the engine, with its connections, whose acts are signed by `signer`."""
    return engine.execution_options(**{SIGNER: signer})


def signer_of(database: sa.Connection | sa.Engine) -> Signer:
    """Returns what signs the acts through a connection or an engine; without a key by default."""
    signer = database.get_execution_options().get(SIGNER)
    return signer if isinstance(signer, Signer) else Signer()


def append(
    db: sa.Connection,
    kind: EntryKind,
    subject: str,
    fields: Mapping[str, object],
    texts: Mapping[str, str] | None = None,
) -> None:
    """Appends an entry in the transaction of its act. No other is appended until commit.

    `texts` are names and free texts, of which the entry has digests. Raises StoreRefused if the last entry
    was not made with a key of this process.
    """
    dialect_of(db).lock_number(db, APPENDING)
    signer, last = signer_of(db), _last(db)
    _require_key(db, signer, last)
    number, previous = (1, "") if last is None else (last.number + 1, last.digest())
    digests = {}
    if texts:
        salt = secrets.token_bytes(SALT_BYTES)
        digests = {name: text_digest(salt, text) for name, text in texts.items()}
        added = insert(db, chain_salts).values(number=number, salt=salt)
        # There is one already if the chain was cut off.
        db.execute(added.on_conflict_do_update(index_elements=["number"], set_={"salt": salt}))
    content = json.dumps({**fields, **digests}, sort_keys=True, separators=(",", ":"))
    entry = ChainEntry(number, kind, subject, content, clock_ms(db), signer.key.fingerprint, "")
    entry = entry._replace(mac=entry.mac_by(signer.key, previous))
    db.execute(sa.insert(chain_entries).values(entry._asdict()))
    db.info[AT_COMMIT] = _note_at_commit


def _require_key(db: sa.Connection, signer: Signer, last: ChainEntry | None) -> None:
    """Raises StoreRefused unless the last entry is one that this process can verify, and may continue."""
    if last is None:
        return
    if not signer.key.fingerprint and last.key:
        raise StoreRefused(
            f"acts are signed with the key {last.key}, which this process does not have",
            "set [billing] digest_key_file to it",
        )
    known = signer.known(last.key)
    if known is None:
        raise StoreRefused(
            f"the last act was signed with the key {last.key}, which this process does not have",
            "set [billing] digest_key_file to it, or name it in earlier_digest_key_files if it was replaced",
        )
    before = db.execute(sa.select(*_COLUMNS).where(chain_entries.c.number == last.number - 1)).first()
    is_whole = last.mac_by(known, "" if before is None else ChainEntry(*before).digest()) == last.mac
    was_signed = sa.select(chain_entries.c.number).where(chain_entries.c.key != "").limit(1)
    if not is_whole or (not last.key and db.execute(was_signed).first() is not None):
        raise StoreRefused(
            f"nothing is signed behind the entry {last.number} of the chain: this program did not write it",
            "see `gatelock billing audit`, and restore a backup",
        )


def _last(db: sa.Connection) -> ChainEntry | None:
    newest = sa.select(*_COLUMNS).order_by(chain_entries.c.number.desc()).limit(1)
    row = db.execute(newest).first()
    return None if row is None else ChainEntry(*row)


_COLUMNS = [chain_entries.c[name] for name in ChainEntry._fields]


def text_digest(salt: bytes, text: str) -> str:
    """Returns the digest of a text in an entry with this salt."""
    return sha256(salt + text.encode()).hexdigest()


def tip(db: sa.Connection) -> Tip:
    """Returns the last entry of the chain."""
    last = _last(db)
    newest = sa.select(chain_entries.c.fields).where(chain_entries.c.kind == "restored")
    fields = db.execute(newest.order_by(chain_entries.c.number.desc()).limit(1)).scalar()
    restored = 0 if fields is None else int(json.loads(fields)["restored"])
    return Tip() if last is None else Tip(last.number, last.mac, restored)


def _note_at_commit(db: sa.Connection) -> Callable[[], None] | None:
    """Returns what is to be done behind the commit: the witness sees the entry."""
    signer, newest = signer_of(db), tip(db)
    if signer.witness is None:
        return None
    open_witness = signer.witness

    def note() -> None:
        try:
            open_witness().note(newest)
        except WitnessAway as error:
            log.warning("the witness has not seen the entry %d: %s", newest.number, error)

    return note


class ChainCheck(NamedTuple):
    """The outcome of reading a chain.

    Attributes:
        entries: All that are stored, by kind and subject; of several with one subject in order.
        broken: What is wrong with the chain itself, in sentences.
        remarks: What it does not prove.
    """

    entries: Mapping[str, Mapping[str, Sequence[ChainEntry]]]
    broken: Sequence[str]
    remarks: Sequence[str]

    def of(self, kind: EntryKind) -> Mapping[str, Sequence[ChainEntry]]:
        """Returns the entries of a kind, by subject."""
        return self.entries.get(kind, {})


def check_chain(db: sa.Connection, signer: Signer) -> ChainCheck:
    """Reads the whole chain, and verifies the HMAC of each entry."""
    entries: dict[str, dict[str, list[ChainEntry]]] = {}
    broken: list[str] = []
    previous, expected, unproved, keyed = "", 1, list[ChainEntry](), False
    for entry in stored_entries(db):
        entries.setdefault(entry.kind, {}).setdefault(entry.subject, []).append(entry)
        if entry.number != expected:
            broken.append(
                f"{_numbers(expected, entry.number)} of the chain {_are(expected, entry.number)} missing"
            )
        key = signer.known(entry.key)
        if keyed and not entry.key:
            broken.append(f"{_named(entry)} was written without the key, behind entries with one")
        elif key is None:
            unproved.append(entry)
        elif entry.number == expected and entry.mac_by(key, previous) != entry.mac:
            broken.append(f"{_named(entry)} was changed, or does not continue the one before")
        elif entry.key:
            unproved.clear()
        keyed = keyed or bool(entry.key)
        previous, expected = entry.digest(), entry.number + 1
    if unproved:
        fingerprints = ", ".join(sorted({entry.key for entry in unproved}))
        broken.append(f"{_named(unproved[0])} was made with the key {fingerprints}, which is not there")
    remarks = [] if keyed or not entries else [WITHOUT_KEY]
    return ChainCheck(entries, broken, remarks)


WITHOUT_KEY = "the chain was made without a key: damage is found, forged entries are not"


def _named(entry: ChainEntry) -> str:
    return f"the entry {entry.number} of the chain ({entry.kind} {entry.subject})".replace(" )", ")")


def _numbers(first: int, until: int) -> str:
    return f"the entry {first}" if until == first + 1 else f"the entries {first} to {until - 1}"


def _are(first: int, until: int) -> str:
    return "is" if until == first + 1 else "are"


def stored_entries(db: sa.Connection) -> Iterator[ChainEntry]:
    """Yields all entries in order."""
    statement = sa.select(*_COLUMNS).order_by(chain_entries.c.number)
    with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
        for row in rows:
            yield ChainEntry(*row)


def salts(db: sa.Connection) -> dict[int, bytes]:
    """Returns the salts that are left, by the number of their entry."""
    return {number: bytes(salt) for number, salt in db.execute(sa.select(chain_salts))}


def differs_from_witness(db: sa.Connection, seen: Tip | None) -> str:
    """Returns how the chain differs from what its witness has seen; "" if it contains that."""
    if seen is None:
        return ""
    now = tip(db)
    if now.restored > seen.restored:
        return ""  # an operator has stated it, and the witness has missed it
    mac = sa.select(chain_entries.c.mac).where(chain_entries.c.number == seen.number)
    stored = db.execute(mac).scalar()
    if stored is None:
        return (
            f"the chain ends with the entry {now.number}, and its witness has seen {seen.number}: "
            "the database was restored, or its last entries were cut off"
        )
    if stored != seen.mac:
        return f"the entry {seen.number} of the chain is not the one that its witness has seen"
    return ""


def require_witnessed(engine: sa.Engine) -> None:
    """Raises ChainCut if the chain does not contain what its witness has seen; WitnessAway, StoreAway.

    Where it does, the witness learns what it has missed.
    """
    signer = signer_of(engine)
    if signer.witness is None:
        return
    witness = signer.witness()
    seen = witness.seen()
    with reading(engine) as db:
        if difference := differs_from_witness(db, seen):
            raise ChainCut(
                f"{difference}; see `gatelock billing audit`, and state a restore by "
                "`gatelock restore days --reason TEXT`"
            )
        newest = tip(db)
    if newest.number and (seen is None or newest.rank > seen.rank):
        witness.note(newest)


def inform_witness(engine: sa.Engine) -> str:
    """Has the witness learn what it has missed; returns why it cannot, "" if it knows all that there is.

    A chain that does not contain what the witness has seen teaches it nothing. Raises StoreAway.
    """
    try:
        require_witnessed(engine)
    except (ChainCut, WitnessAway) as error:
        return str(error)
    return ""


def accept_restore(engine: sa.Engine, who: str, reason: str, *, is_known: bool = False) -> Tip | None:
    """Enters that the database was restored, and has the witness follow it.

    Returns what the witness had seen. Raises LookupError if the chain contains that, or has no witness,
    unless it `is_known` that it was restored; WitnessAway, StoreAway.
    """
    signer = signer_of(engine)
    seen = None if signer.witness is None else signer.witness().seen()
    with writing(engine) as db:
        if not is_known and (seen is None or not differs_from_witness(db, seen)):
            raise LookupError("the chain contains all that its witness has seen")
        witnessed = Tip() if seen is None else seen
        fields = {
            "restored": max(tip(db).restored, witnessed.restored) + 1,
            "number": tip(db).number,
            "witness_number": witnessed.number,
            "witness_mac": witnessed.mac,
        }
        append(db, "restored", "", fields, {"who": who, "reason": reason})
        return seen


def restored_ms(db: sa.Connection) -> int | None:
    """Returns when the database was last restored, as an operator has said; None: never."""
    newest = sa.select(sa.func.max(chain_entries.c.at_ms)).where(chain_entries.c.kind == "restored")
    return db.execute(newest).scalar()
