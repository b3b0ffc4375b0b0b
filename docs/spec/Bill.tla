-------------------------------- MODULE Bill --------------------------------
(* One day is counted, closed, reported and handed over, while the database is restored at any moment.

   All records of the log are of the day, so its amount is the offset at which it is cut. Entries of the chain are
   numbers that are given once, as an HMAC over all before it and its time is. The service keeps the first amount
   that it gets, because the identifier stays the same.                                                     *)
EXTENDS Naturals, Sequences

\* Names in the code. Actions of this module, and the functions that they describe:
\*   Close        = analyzer.billing.days.closing.DayClosing.close
\*   CloseAgain   = analyzer.billing.days.closing.DayClosing.close_again
\*   Witnessed    = analyzer.kernel.database.chain.require_witnessed
\*   Note         = analyzer.kernel.database.chain._note_at_commit
\*   Accept       = analyzer.kernel.database.chain.accept_restore
\*   Learns       = analyzer.kernel.database.chain.inform_witness
\*   Report       = analyzer.faces.cli.report_output.write_with_manifest
\*   Begin        = analyzer.billing.hand_over.deliveries.Deliveries.trying
\*   Unsure       = analyzer.billing.hand_over.prepared_events.why_unsure
\*   Acknowledge  = analyzer.billing.hand_over.deliveries.Deliveries.finished

CONSTANTS
    End, MaxRestores,
    \* The design; each one is FALSE in one broken variant:
    EntryWithAct,      \* an act and its entry commit together
    NotesAfterCommit,  \* the witness sees an entry when it is there, not before
    NotesBeforeSending,  \* what the witness has missed it learns before anything is handed over
    NotesBeforeReport,   \* and before a report of a closed day is written
    ClosesWitnessed,   \* no day is closed while the witness has seen more
    SameCut,           \* a restored day is closed with the cut of its report
    RefusesOther,       \* what was closed otherwise since a restore is not handed over by itself
    ReportsOther        \* and its report says so

None == 0
VARIABLES
    log,       \* records that were written
    db,        \* the database: [next, cut, begun, acked, isOther, isRestored, chain]
    saved,     \* its backup
    report,    \* the kept report: [cut, isOther], cut None: there is none
    witness,   \* [number, entry] that it has seen
    unseen,    \* an act has committed, and its process has not told the witness yet
    entryDue,  \* an act has committed without its entry
    answered,  \* the service has answered the process that hands over
    service,   \* the amount that it has; None: nothing
    given,     \* entries that were given
    restores
vars == <<log, db, saved, report, witness, unseen, entryDue, answered, service, given, restores>>

Empty == [next |-> 0, cut |-> None, begun |-> FALSE, acked |-> FALSE, isOther |-> FALSE, isRestored |-> FALSE,
          chain |-> <<>>]
Tip(d) == [number |-> Len(d.chain), entry |-> IF d.chain = <<>> THEN 0 ELSE d.chain[Len(d.chain)]]
Unseen == [number |-> 0, entry |-> 0]
Contains(d, w) ==
    IF w.number = 0 THEN TRUE ELSE IF w.number > Len(d.chain) THEN FALSE ELSE d.chain[w.number] = w.entry
Witnessed == Contains(db, witness)
With(d, entries) == [d EXCEPT !.chain = d.chain \o entries]

Init ==
    /\ log = 0 /\ db = Empty /\ saved = Empty /\ report = [cut |-> None, isOther |-> FALSE] /\ witness = Unseen /\ unseen = FALSE
    /\ entryDue = FALSE /\ answered = FALSE /\ service = None /\ given = 0 /\ restores = 0

Write == log < End /\ log' = log + 1
    /\ UNCHANGED <<db, saved, report, witness, unseen, entryDue, answered, service, given, restores>>
Count == db.next < log /\ db' = [db EXCEPT !.next = @ + 1]
    /\ UNCHANGED <<log, saved, report, witness, unseen, entryDue, answered, service, given, restores>>

\* An act that changes the database to `d`.
Act(d) ==
    /\ given' = given + 1
    /\ IF EntryWithAct
       THEN db' = With(d, <<given + 1>>) /\ entryDue' = entryDue
       ELSE db' = d /\ entryDue' = TRUE
    /\ IF NotesAfterCommit
       THEN unseen' = TRUE /\ witness' = witness
       ELSE unseen' = FALSE /\ witness' = [number |-> Len(db.chain) + 1, entry |-> given + 1]
\* The witness is told before the commit, and the commit fails.
Fail ==
    /\ ~NotesAfterCommit /\ db.cut = None /\ db.next > 0 /\ Witnessed
    /\ given' = given + 1 /\ witness' = [number |-> Len(db.chain) + 1, entry |-> given + 1]
    /\ UNCHANGED <<log, db, saved, report, unseen, entryDue, answered, service, restores>>
LateEntry ==
    /\ entryDue /\ entryDue' = FALSE /\ db' = With(db, <<given + 1>>) /\ given' = given + 1 /\ unseen' = TRUE
    /\ UNCHANGED <<log, saved, report, witness, answered, service, restores>>

Close ==
    /\ db.cut = None /\ db.next > 0 /\ ~entryDue
    /\ IF ClosesWitnessed THEN Witnessed ELSE TRUE
    /\ Act([db EXCEPT !.cut = db.next, !.isOther = db.isRestored])
    /\ UNCHANGED <<log, saved, report, answered, service, restores>>
Note ==
    /\ unseen /\ unseen' = FALSE /\ witness' = Tip(db)
    /\ UNCHANGED <<log, db, saved, report, entryDue, answered, service, given, restores>>
Crash ==
    /\ unseen \/ entryDue \/ answered
    /\ unseen' = FALSE /\ entryDue' = FALSE /\ answered' = FALSE
    /\ UNCHANGED <<log, db, saved, report, witness, service, given, restores>>

\* What the witness has missed it learns; a chain that does not contain what it has seen teaches it nothing.
Learns == witness' = IF Witnessed THEN Tip(db) ELSE witness
Report ==
    /\ db.cut # None /\ report.cut = None
    /\ report' = [cut |-> db.cut, isOther |-> ReportsOther /\ db.isOther]
    /\ IF NotesBeforeReport THEN Learns ELSE witness' = witness
    /\ UNCHANGED <<log, db, saved, unseen, entryDue, answered, service, given, restores>>

Unsure == RefusesOther /\ db.isOther
Begin ==
    /\ db.cut # None /\ ~db.begun /\ ~Unsure
    /\ IF NotesBeforeSending THEN Witnessed /\ Learns ELSE witness' = witness
    /\ db' = [db EXCEPT !.begun = TRUE]
    /\ UNCHANGED <<log, saved, report, unseen, entryDue, answered, service, given, restores>>
Send ==
    /\ db.begun /\ ~db.acked /\ ~answered /\ answered' = TRUE
    /\ service' = IF service = None THEN db.cut ELSE service
    /\ UNCHANGED <<log, db, saved, report, witness, unseen, entryDue, given, restores>>
Acknowledge ==
    /\ answered /\ answered' = FALSE /\ ~entryDue
    /\ Act([db EXCEPT !.acked = TRUE])
    /\ UNCHANGED <<log, saved, report, service, restores>>

Backup == saved' = db
    /\ UNCHANGED <<log, db, report, witness, unseen, entryDue, answered, service, given, restores>>
Restore ==
    /\ restores < MaxRestores /\ restores' = restores + 1
    /\ db' = saved /\ unseen' = FALSE /\ entryDue' = FALSE /\ answered' = FALSE
    /\ UNCHANGED <<log, saved, report, witness, service, given>>
CloseAgain ==
    /\ restores > 0 /\ db.cut = None /\ report.cut # None /\ db.next <= report.cut /\ log >= report.cut
    /\ LET cut == IF SameCut THEN report.cut ELSE log IN
       db' = With([db EXCEPT !.next = cut, !.cut = cut, !.isOther = report.isOther, !.isRestored = TRUE],
                  <<given + 1, given + 2>>)
    /\ given' = given + 2 /\ witness' = Tip(db')
    /\ UNCHANGED <<log, saved, report, unseen, entryDue, answered, service, restores>>
Accept ==
    /\ ~Witnessed /\ db' = With([db EXCEPT !.isRestored = TRUE], <<given + 1>>)
    /\ given' = given + 1 /\ witness' = Tip(db')
    /\ UNCHANGED <<log, saved, report, unseen, entryDue, answered, service, restores>>

Next == Write \/ Count \/ Close \/ Note \/ Crash \/ Fail \/ LateEntry \/ Report \/ Begin \/ Send \/ Acknowledge
    \/ Backup \/ Restore \/ CloseAgain \/ Accept
Spec == Init /\ [][Next]_vars

\* What is acknowledged is what the service has.
AcknowledgedIsBilled == db.acked => service = db.cut
\* A closed day has an entry.
ClosingsAreEntered == db.cut # None /\ ~entryDue => db.chain # <<>>
\* Without a restore the chain contains what the witness has seen.
NoFalseAlarm == restores = 0 => Witnessed
=============================================================================
