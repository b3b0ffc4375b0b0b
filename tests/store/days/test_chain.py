"""The chain of what bills take as given: what a user with every SQL right, but not the key, has changed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.billing.audit.examined_days import AuditedDigests, examine_digests
from analyzer.billing.days.given_differences import WITHOUT_WITNESS, compare_given
from analyzer.billing.witness import FileWitness
from analyzer.kernel.database import chain, signed_rows
from analyzer.kernel.database.audit_log import RECORDS_RETRIED, record
from analyzer.kernel.database.chain import Signer, Tip, append, check_chain, signed, stored_entries, tip
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import ChainCut, DayAltered, StoreRefused, WitnessAway
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from tests.store.days.closed_days import KEY, ClosedDays
from tests.support.tampered_tables import tamper

SIGNER = Signer(KEY)
OTHER_KEY = DigestKey(b"another key of digests")
WRONG = DigestKey(b"a key that was invented")
RETRY = "insert into events values ('r1', 5, 'eve', 'rejects counted', 'log[0]@7', 'why')"


@pytest.fixture
def closed(engine: sa.Engine) -> ClosedDays:
    return ClosedDays(signed(engine, SIGNER))


def audit(closed: ClosedDays) -> AuditedDigests:
    return examine_digests(closed.engine, [closed.key])


def differences(closed: ClosedDays) -> list[str]:
    return [difference.what for difference in audit(closed).given.differences]


def test_rows_of_acts_equal_the_chain_both_ways(closed: ClosedDays) -> None:
    with writing(closed.engine) as db:
        signed_rows.sign(
            db, signed_rows.retry(record(db, "eve", RECORDS_RETRIED, "log[0]@7", "a mapping was mended"))
        )
    outcome = audit(closed)
    assert (outcome.equal, outcome.given.differences) == (True, [])
    assert outcome.given.remarks == [WITHOUT_WITNESS]
    with reading(closed.engine) as db:
        kinds = [entry.kind for entry in stored_entries(db)]
    assert kinds == ["plan", "closing", "correction", "closing", "retry"]


# Each is done by SQL, triggers off: the statement, and a part of the sentence that names it.
TAMPERINGS = {
    "a plan": (
        "insert into plans select version + 1, 'x', body, 0, at_ms, pending, 'forged' from plans",
        "the plan 2 stands in the tables",
    ),
    "the body of a plan": (
        "update plans set body = replace(body, 'requests', 'requests ')", "the plan 1 is not what its act"
    ),
    "the mark of a plan": ("update plans set mark = 'other'", "the plan 1 stands in the tables"),
    "a stretch": (
        "insert into stretches values ('c', 't', 9, 0, 7, 'forged')",
        "by the plan 7, which no act put in force",
    ),
    "a skipped gap": (
        "insert into gaps values ('g1', 'c', 't', 0, 'log', 'log', 'retention', 5, 9, null, '', 1, '', 9, 2, "
        "'eve', 'r')",
        "the skipped gap of log[0] at 5 stands",
    ),
    "a retry": (RETRY, "the retry of log[0]@7 stands"),
    "a partition left out": (
        "insert into day_positions values (1, 'c', 't', 0, 'log', 'log', 5, null, 'why', '', '', 'eve', 0)",
        "that log[0] is left out stands",
    ),
    "a correction": (
        "insert into corrections select 2, day, booked, grouping, reference, resource, meter, -50, who, "
        "reason, salt, reason_digest, at_ms from corrections",
        "the correction 2 of -50 requests stands",
    ),
    "a corrected amount": ("update corrections set amount = -50", "the correction 1 of -50 requests is not"),
    "who has corrected": ("update corrections set who = 'other'", "is not what its act has"),
    "a lost correction": ("delete from corrections", "the correction 1 was booked (entry 3), and is gone"),
    "a day set back to open": (
        "update days set state = 'closing' where id = 2", "was closed (entry 4), and is not closed any more"
    ),
    "a deleted day": ("delete from days where id = 2", "was closed (entry 4), and is not closed any more"),
    "the digest of a day": ("update days set digest = 'forged' where id = 1", "is not what its act has"),
    "a mark of deletion": (
        "insert into deleted_days values (1, 'forged', 9)", "the mark of its deletion stands in the tables"
    ),
    "a replay": (
        "insert into replays values (1, 'swapped', 's', 1, 'm', 'p', '[]', 'a', 'eve', 1, 2, 3, 'eve', 'r', "
        "0, '[]')",
        "the replay 1 that was swapped in stands",
    ),
    "a delivery": (
        "insert into deliveries values ('https://lago', 'UTC', '2026-11-20', 'caller', 'frozen', 'requests', "
        "'lago', '[]', 12, 1836, 0, 0, 0, 'eve', 1, 2, null, 3)",
        "what https://lago has acknowledged of requests (frozen) stands",
    ),
    "an entry": ("update chain_entries set fields = '{}' where number = 3", "the entry 3 of the chain"),
    "an entry by another key": (
        "update chain_entries set key = 'aa', fields = '{}' where number = 3", "the entry 4 of the chain"
    ),
    "a lost entry": ("delete from chain_entries where number = 2", "the entry 2 of the chain is missing"),
    "the number of an entry": ("update chain_entries set number = 9 where number = 4", "entries 4 to 8 of"),
    "the time of an entry": ("update chain_entries set at_ms = 1 where number = 2", "the entry 2 of the"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_row_without_an_act_is_found_by_the_audit(closed: ClosedDays, name: str) -> None:
    statement, sentence = TAMPERINGS[name]
    assert differences(closed) == []
    tamper(closed.engine, statement)
    assert [what for what in differences(closed) if sentence in what], differences(closed)
    assert not audit(closed).equal


def forged_entry(closed: ClosedDays, key: DigestKey, fingerprint: str) -> None:
    """Appends an entry about a correction that no act has made, as well as it can be done without the key."""
    with writing(closed.engine) as db:
        *_, last = stored_entries(db)
        entry = chain.ChainEntry(last.number + 1, "retry", "r1", "{}", 5, fingerprint, "")
        forged = entry._replace(mac=entry.mac_by(key, last.digest()))
        db.execute(sa.insert(chain.chain_entries).values(forged._asdict()))


@pytest.mark.parametrize("fingerprint", ["", KEY.fingerprint, WRONG.fingerprint])
def test_a_forged_entry_is_found_and_no_act_is_signed_behind_it(closed: ClosedDays, fingerprint: str) -> None:
    key = DigestKey() if not fingerprint else WRONG
    forged_entry(closed, key, fingerprint)
    assert [what for what in differences(closed) if "the entry 5 of the chain" in what]
    with pytest.raises(StoreRefused), writing(closed.engine) as db:
        append(db, "retry", "r2", {})


def test_a_process_without_the_key_signs_nothing(closed: ClosedDays) -> None:
    for signer in (Signer(), Signer(WRONG)):
        with (
            pytest.raises(StoreRefused, match="digest_key_file"),
            writing(signed(closed.engine, signer)) as db,
        ):
            append(db, "retry", "r2", {})
    replaced = Signer(OTHER_KEY, earlier=(KEY,))
    with writing(signed(closed.engine, replaced)) as db:
        append(db, "retry", "r2", {})
    with reading(closed.engine) as db:
        assert check_chain(db, replaced).broken == []
        assert "was made with the key" in check_chain(db, Signer(KEY)).broken[0]
        assert check_chain(db, Signer(OTHER_KEY)).broken == [], "the later key proves what came before"


def test_entries_without_a_key_may_come_before_the_first_key_alone(engine: sa.Engine) -> None:
    with writing(engine) as db:
        append(db, "retry", "r1", {"n": 1})
    with reading(engine) as db:
        assert check_chain(db, Signer()).remarks == [chain.WITHOUT_KEY]
    with writing(signed(engine, SIGNER)) as db:
        append(db, "retry", "r2", {"n": 2})
    with reading(engine) as db:
        check = check_chain(db, SIGNER)
        assert (check.broken, check.remarks) == ([], [])
    tamper(engine, "update chain_entries set fields = '{\"n\":3}' where number = 1")
    with reading(engine) as db:
        assert check_chain(db, SIGNER).broken


@pytest.mark.parametrize(
    "statement",
    [
        "update chain_entries set kind = 'x'",
        "delete from chain_entries",
        "delete from chain_entries where number = 1",
    ],
)
def test_the_database_refuses_to_change_an_entry(closed: ClosedDays, statement: str) -> None:
    with pytest.raises(sa.exc.DBAPIError, match="entries of the chain"), writing(closed.engine) as db:
        db.execute(sa.text(statement))


def close_another(closed: ClosedDays) -> None:
    closed.count("api_key:acme", 4, closed.first.begin_s + 3 * 86_400 - 60)
    closed.close()


@pytest.mark.parametrize("name", ["a plan", "a stretch", "a skipped gap", "a retry", "an entry", "a replay"])
def test_a_day_is_not_signed_by_what_no_act_has_given(closed: ClosedDays, name: str) -> None:
    tamper(closed.engine, TAMPERINGS[name][0])
    with pytest.raises(DayAltered, match="it is not signed"):
        closed.close()


def test_a_day_that_was_closed_is_not_closed_again(closed: ClosedDays) -> None:
    """The signing job must not sign what it is fed with: a day set back, with other buckets."""
    tamper(
        closed.engine,
        "update days set state = 'open' where id = 2",
        "delete from days where id = 3",
        "delete from frozen_counts where day = 2",
        "update buckets set value_0 = value_0 - 1 where value_0 > 1",
    )
    with pytest.raises(DayAltered, match=r"was closed \(entry 4\), and is not closed any more"):
        closed.close()


def test_a_correction_booked_by_sql_keeps_its_day_from_being_signed(closed: ClosedDays) -> None:
    tamper(
        closed.engine,
        "insert into corrections select 2, day, 3, grouping, reference, resource, meter, -5, who, "
        "reason, salt, reason_digest, at_ms from corrections",
    )
    with pytest.raises(DayAltered, match="the correction 2 of -5 requests stands in the tables"):
        closed.close()


def test_a_text_cannot_be_changed_by_destroying_its_salt(closed: ClosedDays) -> None:
    tamper(closed.engine, "delete from chain_salts where number = 1")
    assert differences(closed) == ["the plan 1 is not what its act has entered in the chain (entry 1)"]


def test_a_row_from_which_a_name_was_taken_is_signed_again(closed: ClosedDays) -> None:
    act = {"id": "r1", "at_ms": 5, "who": "eve", "about": "log[0]@7", "why": "of ann"}
    with writing(closed.engine) as db:
        signed_rows.sign(db, signed_rows.retry(act))
        signed_rows.sign_again(db, signed_rows.retry(act | {"why": "of forgotten:1"}))
    insert = "insert into events values ('r1', 5, 'eve', 'rejects counted', 'log[0]@7', 'of forgotten:1')"
    tamper(closed.engine, insert)
    assert differences(closed) == []
    with reading(closed.engine) as db:
        assert set(chain.salts(db)) == {1, 3, 6}, "that of the text with the name is destroyed"


def test_a_plan_is_gone_only_where_it_is_in_force_or_has_counted(closed: ClosedDays) -> None:
    """Plans that no stretch names are deleted after their retention, between others that are kept."""
    for meter in ("a", "b"):
        closed.store.activate(make_plan(["caller"], [Meter(meter, "took", "max")], []))
    tamper(closed.engine, "delete from plans where version = 2")
    assert differences(closed) == []
    tamper(closed.engine, "delete from plans where version = 3")
    assert differences(closed) == ["the plan 3 was put in force (entry 6), and is gone"]


# The witness


@pytest.fixture
def witness(tmp_path: Path) -> FileWitness:
    return FileWitness(tmp_path / "witness.json")


@pytest.fixture
def witnessed(engine: sa.Engine, witness: FileWitness) -> ClosedDays:
    return ClosedDays(signed(engine, SIGNER._replace(witness=lambda: witness)))


def test_the_witness_has_the_last_entry_of_each_commit(witnessed: ClosedDays, witness: FileWitness) -> None:
    with reading(witnessed.engine) as db:
        assert witness.seen() == tip(db)
        assert tip(db).number == 4
    assert audit(witnessed).given.remarks == []
    with suppress(ZeroDivisionError), writing(witnessed.engine) as db:
        append(db, "retry", "r2", {})
        raise ZeroDivisionError
    with writing(witnessed.engine) as db:
        db.execute(sa.text("select 1"))
    assert witness.seen() == Tip(4, tip_mac(witnessed), 0)


def tip_mac(closed: ClosedDays) -> str:
    with reading(closed.engine) as db:
        return tip(db).mac


def test_a_chain_that_was_cut_is_found_and_nothing_is_closed(witnessed: ClosedDays) -> None:
    cut = [
        "delete from chain_entries where number = 4",
        "update days set state = 'open' where id = 2",
        "delete from days where id = 3",
        "delete from frozen_counts where day = 2",
    ]
    tamper(witnessed.engine, *cut)
    assert [what for what in differences(witnessed) if "its witness has seen 4" in what]
    with pytest.raises(ChainCut, match="was restored, or its last entries were cut off"):
        witnessed.close()
    with writing(witnessed.engine) as db:  # counting, judging and acts continue
        append(db, "retry", "r2", {})
    assert [what for what in differences(witnessed) if "is not the one that its witness has seen" in what]
    with pytest.raises(ChainCut):
        witnessed.close()


def test_a_restore_that_an_operator_has_stated_lets_days_be_closed(
    witnessed: ClosedDays, witness: FileWitness
) -> None:
    tamper(
        witnessed.engine,
        "delete from chain_entries where number = 4",
        "update days set state = 'closing', digest = '', digest_before = '' where id = 2",
    )
    chain.accept_restore(witnessed.engine, "eve", "the disk broke")
    assert (witness.seen() or Tip()).rank == (1, 4)
    assert differences(witnessed) == []
    assert (
        "restored after the entry 3, as an operator has said: those up to 4 were lost"
        in audit(witnessed).given.remarks[0]
    )
    witnessed.close()
    assert differences(witnessed) == []


def test_an_act_during_an_audit_does_not_look_like_a_cut(witnessed: ClosedDays, witness: FileWitness) -> None:
    """The snapshot of an audit is older than what the witness has by then."""
    with reading(witnessed.engine) as db:
        assert tip(db).number == 4
        with writing(witnessed.engine) as later:
            append(later, "retry", "r2", {})
        assert (witness.seen() or Tip()).number == 5
        outcome = compare_given(db, chain.signer_of(db))
    assert [one.what for one in outcome.differences] == []


def test_a_witness_that_is_away_keeps_days_from_being_closed(
    witnessed: ClosedDays, witness: FileWitness, tmp_path: Path
) -> None:
    (tmp_path / "witness.json").write_text("{}")
    with pytest.raises(WitnessAway):
        witness.seen()
    with pytest.raises(WitnessAway):
        witnessed.close()
    assert [what for what in differences(witnessed) if "the witness of the chain cannot be read" in what]


def test_a_witness_that_cannot_be_written_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(WitnessAway, match=r"No such file or directory; check \[billing\] witness"):
        FileWitness(tmp_path / "nowhere" / "witness.json").note(Tip(1, "a"))


def test_an_older_tip_does_not_replace_a_newer_one(witness: FileWitness) -> None:
    notes: list[tuple[Tip, Tip]] = [
        (Tip(5, "a"), Tip(5, "a")),
        (Tip(4, "b"), Tip(5, "a")),
        (Tip(3, "c", 1), Tip(3, "c", 1)),
        (Tip(9, "d"), Tip(3, "c", 1)),
    ]
    for noted, seen in notes:
        witness.note(noted)
        assert witness.seen() == seen


def test_a_changed_plan_is_an_entry_and_an_equal_one_is_not(closed: ClosedDays) -> None:
    def plans() -> int:
        with reading(closed.engine) as db:
            return len(check_chain(db, SIGNER).of("plan"))

    assert plans() == 1
    closed.store.activate(make_plan(["caller"], [Meter("slowest", "took", "max")], []))
    assert plans() == 2
    closed.store.activate(make_plan(["caller"], [Meter("slowest", "took", "max")], []))
    assert plans() == 2


def test_a_commit_that_fails_is_not_witnessed(witnessed: ClosedDays, witness: FileWitness) -> None:
    def fails(_db: sa.Connection) -> None:
        raise ZeroDivisionError

    sa.event.listen(witnessed.engine, "commit", fails)
    with suppress(ZeroDivisionError), writing(witnessed.engine) as db:
        append(db, "retry", "r2", {})
    assert (witness.seen() or Tip()).number == 4
