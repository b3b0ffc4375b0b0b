-------------------------------- MODULE Feed --------------------------------
(* Gates follow the lock set of the database: over SQL, or over HTTP from servers that read the feed once for
   all their gates. Answers get lost, arrive late or twice; changes are pruned; a dump is restored; gates
   restart with a saved view; the clock of a gate is set back.

   A mark is random in the code. Here it is a number that was never used before, so that it also names the
   commit: `truth` has the lock set of each.                                                              *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

\* Names in the code. Actions of this module, and the functions that they describe:
\*   TakeVersion    = analyzer.judging.locks.lock_feed.publish
\*   CommitVersion  = analyzer.kernel.database.engine.writing
\*   Prune          = analyzer.judging.locks.lock_feed.prune
\*   Request        = gatekeeper.feed.poller.Poller._fetch
\*   Fetch          = gatekeeper.sources.sql.SqlSource.fetch
\*   HasChangesSince = gatekeeper.sources.sql._has_changes_since
\*   Refresh        = analyzer.faces.feed.feed_cache.FeedCache._refresh
\*   Kept           = analyzer.faces.feed.feed_cache.KeptChanges.find
\*   Answer         = analyzer.faces.feed.feed_cache.FeedCache.answer
\*   Apply          = gatekeeper.view.lock_view.apply
\*   Fail           = gatekeeper.feed.poller.Poller._fail
\*   DropEnded      = gatekeeper.view.lock_view.without_ended
\*   Save           = gatekeeper.feed.saved_view.ViewFile.save
\*   Restart        = gatekeeper.feed.poller.Poller._load_view

CONSTANTS
    Gates, Servers,
    Locks,         \* keys of locks
    Ending,        \* those that end while a gate looks
    MaxVersions,   \* commits, over all histories
    MaxRestores, MaxPrunes, MaxFaults,
    Saves, Repeats, \* whether gates save their views; whether a cache on the way repeats an old answer
    \* The design; each one is FALSE in one broken variant:
    ComparesMark,    \* a cursor is a version and its mark
    VersionFromRow,  \* the version is a row, locked until commit; otherwise a sequence
    OneSnapshot,     \* a fetch reads in one snapshot; otherwise each statement sees the latest commits
    ChecksStep,      \* changes are applied only to the version that they follow
    RefreshesFirst,  \* a server answers by a read that began after the request arrived
    PrunedToRises    \* of two wardens that prune at once the slower one does not set `pruned_to` back

VARIABLES
    db,        \* [version, mark, pruned, marks, changes, locks]
    taken,     \* transactions that have taken a version and are not committed
    last,      \* the latest version taken, of the sequence
    pruning,   \* versions up to which wardens are about to prune
    dump, restores, prunes, faults,
    truth,     \* by mark: the locks after its commit
    gate,      \* by gate: view, cursor of the view, cursor of the next request, clock, ...
    line,      \* by gate: the request or the answer on the way
    repeated,  \* by gate: the last answer with changes
    file,      \* by gate: the saved view
    cache,     \* by server: the latest version that it has read, and what it keeps
    wentBack   \* gates that were led to an earlier version of one history

feedVars == <<db, taken, last, pruning, dump, restores, prunes, truth>>
gateVars == <<gate, line, repeated, file, wentBack>>
vars == <<feedVars, gateVars, cache, faults>>

NoCursor == [version |-> 99, mark |-> 99]
NoView == [locks |-> {}, mark |-> 0]
Idle == [phase |-> "idle"]
Cursor(version, mark) == [version |-> version, mark |-> mark]
NewGate == [view |-> {}, seen |-> 0, at |-> NoCursor, since |-> NoCursor, clock |-> 0, dropped |-> FALSE, epoch |-> 0]
NewCache == [at |-> NoCursor, steps |-> <<>>, all |-> [locks |-> {}, known |-> FALSE], fresh |-> {}, epoch |-> 0]

Init ==
    /\ db = [version |-> 0, mark |-> 0, pruned |-> 0, marks |-> <<>>, changes |-> <<>>, locks |-> {}]
    /\ taken = {} /\ last = 0 /\ pruning = {} /\ dump = <<>> /\ restores = 0 /\ prunes = 0 /\ faults = 0
    /\ truth = <<>>
    /\ gate = [g \in Gates |-> NewGate] /\ line = [g \in Gates |-> Idle]
    /\ repeated = [g \in Gates |-> Idle] /\ file = [g \in Gates |-> NoView]
    /\ cache = [s \in Servers |-> NewCache] /\ wentBack = {}

Truth(mark) == IF mark = 0 THEN {} ELSE truth[mark]
Changed(locks, key) == IF key \in locks THEN locks \ {key} ELSE locks \cup {key}
RECURSIVE Replay(_, _)
Replay(locks, changes) == IF changes = <<>> THEN locks
    ELSE LET key == Head(changes).key IN
         Replay(IF Head(changes).op = "set" THEN locks \cup {key} ELSE locks \ {key}, Tail(changes))

--------------------------------------------------------------------------------
(* The database. *)

TakeVersion(key) ==
    /\ Len(truth) + Cardinality(taken) < MaxVersions
    /\ VersionFromRow => taken = {}
    /\ \A t \in taken : t.key # key  \* the lock's row is held
    /\ taken' = taken \cup {[key |-> key, version |-> 1 + IF VersionFromRow THEN db.version ELSE last]}
    /\ last' = 1 + IF VersionFromRow THEN db.version ELSE last
    /\ UNCHANGED <<db, pruning, dump, restores, prunes, truth, gateVars, cache, faults>>

CommitVersion(t) ==
    LET mark == Len(truth) + 1
        change == [version |-> t.version, key |-> t.key, op |-> IF t.key \in db.locks THEN "clear" ELSE "set"]
        before == SelectSeq(db.changes, LAMBDA c : c.version < t.version)
        after == SelectSeq(db.changes, LAMBDA c : c.version > t.version)
        isNewest == t.version > db.version
    IN
    /\ db' = [db EXCEPT
        !.version = IF isNewest THEN t.version ELSE @, !.mark = IF isNewest THEN mark ELSE @,
        !.marks = (t.version :> mark) @@ @,
        !.changes = before \o <<change>> \o after, !.locks = Changed(@, t.key)]
    /\ truth' = Append(truth, Changed(db.locks, t.key))
    /\ taken' = taken \ {t}
    /\ UNCHANGED <<last, pruning, dump, restores, prunes, gateVars, cache, faults>>

\* A warden reads up to where it may prune, and then deletes; the newest version stays. Two may do so at once.
Prune ==
    \/ /\ prunes < MaxPrunes /\ prunes' = prunes + 1
       /\ \E v \in 1..(db.version - 1) : pruning' = pruning \cup {v}
       /\ UNCHANGED <<db, taken, last, dump, restores, truth>>
    \/ /\ \E v \in pruning :
          /\ pruning' = pruning \ {v}
          /\ db' = [db EXCEPT !.pruned = IF v > @ \/ ~PrunedToRises THEN v ELSE @,
                !.marks = [w \in {w \in DOMAIN @ : w > v} |-> @[w]],
                !.changes = SelectSeq(@, LAMBDA c : c.version > v)]
       /\ UNCHANGED <<taken, last, dump, restores, prunes, truth>>

PruneStep == Prune /\ UNCHANGED <<gateVars, cache, faults>>

Dump ==
    /\ restores < MaxRestores /\ dump = <<>> /\ dump' = <<db>>
    /\ UNCHANGED <<db, taken, last, pruning, restores, prunes, truth, gateVars, cache, faults>>
Restore ==
    /\ dump # <<>> /\ restores < MaxRestores /\ restores' = restores + 1
    /\ db' = dump[1] /\ taken' = {} /\ pruning' = {} /\ last' = dump[1].version
    /\ UNCHANGED <<dump, prunes, truth, gateVars, cache, faults>>

--------------------------------------------------------------------------------
(* Reading the feed. *)

HeldMark(version) == IF version = db.version THEN db.mark ELSE IF version \in DOMAIN db.marks THEN db.marks[version] ELSE 98
HasChangesSince(since) ==
    /\ since # NoCursor /\ since.version >= db.pruned
    /\ IF ComparesMark THEN since.mark = HeldMark(since.version) ELSE since.version <= db.version
ChangesAfter(version) == SelectSeq(db.changes, LAMBDA c : c.version > version)

\* `epoch` is not in an answer: the number of restores before it was read.
Snapshot(position, epoch, locks) ==
    [phase |-> "answered", snapshot |-> TRUE, since |-> NoCursor, at |-> position, locks |-> locks,
     changes |-> <<>>, epoch |-> epoch]
Update(position, epoch, since, changes) ==
    [phase |-> "answered", snapshot |-> FALSE, since |-> since, at |-> position, locks |-> {},
     changes |-> changes, epoch |-> epoch]
Position == Cursor(db.version, db.mark)

\* What one transaction on the database answers. A snapshot instead of very many changes is always possible.
Read(since) ==
    {Snapshot(Position, restores, db.locks)} \cup
    IF HasChangesSince(since) THEN {Update(Position, restores, since, ChangesAfter(since.version))} ELSE {}

\* The clock was set back behind a moment when ended locks were removed: the next request is for all locks.
Request(g) ==
    /\ line[g].phase = "idle"
    /\ LET isBack == gate[g].dropped /\ gate[g].clock = 0
           since == IF isBack THEN NoCursor ELSE gate[g].since
       IN
       /\ gate' = [gate EXCEPT ![g].since = since, ![g].dropped = IF isBack THEN FALSE ELSE @]
       /\ IF Servers = {}
          THEN line' = [line EXCEPT ![g] = [phase |-> "asked", since |-> since]]
          ELSE \E s \in Servers : line' = [line EXCEPT ![g] = [phase |-> "asked", since |-> since, server |-> s]]
    /\ UNCHANGED <<feedVars, repeated, file, wentBack, cache, faults>>

Fetch(g) ==
    /\ Servers = {} /\ line[g].phase = "asked" /\ OneSnapshot
    /\ \E answer \in Read(line[g].since) : line' = [line EXCEPT ![g] = answer]
    /\ UNCHANGED <<feedVars, gate, repeated, file, wentBack, cache, faults>>

\* Broken variant: the position and the rows come from two snapshots.
FetchPosition(g) ==
    /\ Servers = {} /\ line[g].phase = "asked" /\ ~OneSnapshot
    /\ line' = [line EXCEPT ![g] = [phase |-> "position", since |-> line[g].since, at |-> Position,
                                    known |-> HasChangesSince(line[g].since)]]
    /\ UNCHANGED <<feedVars, gate, repeated, file, wentBack, cache, faults>>
FetchRows(g) ==
    /\ line[g].phase = "position"
    /\ line' = [line EXCEPT ![g] =
        IF line[g].known THEN Update(line[g].at, restores, line[g].since, ChangesAfter(line[g].since.version))
        ELSE Snapshot(line[g].at, restores, db.locks)]
    /\ UNCHANGED <<feedVars, gate, repeated, file, wentBack, cache, faults>>

--------------------------------------------------------------------------------
(* A server. It reads what follows the latest version that it knows, and keeps the steps. *)

Waiting(s) == {g \in Gates : line[g].phase = "asked" /\ line[g].server = s}

Refresh(s) ==
    /\ Waiting(s) # {}
    /\ \E answer \in Read(cache[s].at) :
        cache' = [cache EXCEPT ![s] =
            CASE answer.at = cache[s].at -> [@ EXCEPT !.fresh = Waiting(s), !.epoch = restores]
              [] answer.at # cache[s].at /\ answer.snapshot ->
                    [at |-> answer.at, steps |-> <<>>, all |-> [locks |-> answer.locks, known |-> TRUE],
                     fresh |-> Waiting(s), epoch |-> restores]
              [] OTHER ->
                    [at |-> answer.at, all |-> NewCache.all, fresh |-> Waiting(s), epoch |-> restores,
                     steps |-> Append(cache[s].steps, [since |-> cache[s].at, changes |-> answer.changes])]]
    /\ UNCHANGED <<feedVars, gateVars, faults>>

RECURSIVE Joined(_)
Joined(steps) == IF steps = <<>> THEN <<>> ELSE Head(steps).changes \o Joined(Tail(steps))
Begins(s, since) == {i \in DOMAIN cache[s].steps : cache[s].steps[i].since = since}

\* The answers that the server can give without a read.
Kept(s, since) ==
    LET steps == cache[s].steps IN
    CASE since = cache[s].at /\ since # NoCursor -> {Update(since, cache[s].epoch, since, <<>>)}
      [] Begins(s, since) # {} ->
            {Update(cache[s].at, cache[s].epoch, since, Joined(SubSeq(steps, i, Len(steps)))) : i \in Begins(s, since)}
      [] since = NoCursor /\ cache[s].all.known -> {Snapshot(cache[s].at, cache[s].epoch, cache[s].all.locks)}
      [] OTHER -> {}

Answer(g) ==
    /\ line[g].phase = "asked" /\ Servers # {}
    /\ LET s == line[g].server
           kept == Kept(s, line[g].since)
       IN
       /\ RefreshesFirst => g \in cache[s].fresh
       /\ cache[s].at # NoCursor
       /\ \E answer \in IF kept # {} THEN kept ELSE Read(line[g].since) : line' = [line EXCEPT ![g] = answer]
       /\ cache' = [cache EXCEPT ![s].fresh = @ \ {g}]
    /\ UNCHANGED <<feedVars, gate, repeated, file, wentBack, faults>>

--------------------------------------------------------------------------------
(* A gate. *)

\* Whether changes follow from the gate's view.
Follows(g, answer) ==
    LET at == gate[g].at IN
    /\ at # NoCursor /\ answer.since.version = at.version /\ answer.at.version >= answer.since.version
    /\ answer.at.version = at.version => answer.changes = <<>> /\ answer.at = at

Apply(g) ==
    /\ line[g].phase = "answered"
    /\ LET answer == line[g]
           view == IF answer.snapshot THEN answer.locks ELSE Replay(gate[g].view, answer.changes)
       IN
       IF answer.snapshot \/ ~ChecksStep \/ Follows(g, answer)
       THEN /\ gate' = [gate EXCEPT ![g].view = view, ![g].seen = answer.at.mark, ![g].at = answer.at,
                ![g].since = answer.at, ![g].epoch = answer.epoch]
            /\ wentBack' = IF /\ gate[g].at # NoCursor /\ answer.epoch = gate[g].epoch
                              /\ answer.at.version < gate[g].at.version
                           THEN wentBack \cup {g} ELSE wentBack
            /\ repeated' = IF Repeats /\ ~answer.snapshot THEN [repeated EXCEPT ![g] = answer] ELSE repeated
       ELSE /\ gate' = [gate EXCEPT ![g].since = NoCursor]  \* ViewOutOfStep
            /\ UNCHANGED <<wentBack, repeated>>
    /\ line' = [line EXCEPT ![g] = Idle]
    /\ UNCHANGED <<feedVars, file, cache, faults>>

\* The request, its answer or the server is lost. The cursor stays.
Fail(g) ==
    /\ line[g].phase # "idle" /\ faults < MaxFaults /\ faults' = faults + 1
    /\ line' = [line EXCEPT ![g] = Idle]
    /\ UNCHANGED <<feedVars, gate, repeated, file, wentBack, cache>>

\* An earlier answer with changes arrives instead of the one to this request.
Repeat(g) ==
    /\ line[g].phase = "asked" /\ repeated[g].phase = "answered" /\ faults < MaxFaults /\ faults' = faults + 1
    /\ line' = [line EXCEPT ![g] = repeated[g]]
    /\ UNCHANGED <<feedVars, gate, repeated, file, wentBack, cache>>

\* By the gate's clock some locks have ended.
DropEnded(g) ==
    /\ gate[g].clock = 1 /\ gate[g].view \cap Ending # {}
    /\ gate' = [gate EXCEPT ![g].view = @ \ Ending, ![g].dropped = TRUE]
    /\ UNCHANGED <<feedVars, line, repeated, file, wentBack, cache, faults>>
ClockMoves(g) ==
    /\ Ending # {} /\ faults < MaxFaults /\ faults' = faults + 1
    /\ gate' = [gate EXCEPT ![g].clock = 1 - @]
    /\ UNCHANGED <<feedVars, line, repeated, file, wentBack, cache>>

\* The file is written now and then.
Save(g) ==
    /\ Saves /\ gate[g].at # NoCursor /\ file[g] # [locks |-> gate[g].view, mark |-> gate[g].seen]
    /\ file' = [file EXCEPT ![g] = [locks |-> gate[g].view, mark |-> gate[g].seen]]
    /\ UNCHANGED <<feedVars, gate, line, repeated, wentBack, cache, faults>>
\* A new process, with the saved view or without any; or only the poller ends, and the view stays.
Restart(g) ==
    /\ faults < MaxFaults /\ faults' = faults + 1
    /\ gate' = [gate EXCEPT ![g] =
        IF Saves THEN [NewGate EXCEPT !.view = file[g].locks, !.seen = file[g].mark, !.clock = gate[g].clock,
                       !.dropped = gate[g].clock = 0 /\ file[g].locks # Truth(file[g].mark)]
        ELSE [gate[g] EXCEPT !.since = NoCursor, !.dropped = FALSE]]
    /\ line' = [line EXCEPT ![g] = Idle] /\ repeated' = [repeated EXCEPT ![g] = Idle]
    /\ UNCHANGED <<feedVars, file, wentBack, cache>>

Next ==
    \/ \E key \in Locks : TakeVersion(key)
    \/ \E t \in taken : CommitVersion(t)
    \/ PruneStep \/ Dump \/ Restore
    \/ \E g \in Gates : Request(g) \/ Fetch(g) \/ FetchPosition(g) \/ FetchRows(g) \/ Answer(g) \/ Apply(g)
    \/ \E g \in Gates : Fail(g) \/ Repeat(g) \/ DropEnded(g) \/ ClockMoves(g) \/ Save(g) \/ Restart(g)
    \/ \E s \in Servers : Refresh(s)
Spec == Init /\ [][Next]_vars

Fairness ==
    /\ \A g \in Gates : WF_vars(Request(g)) /\ WF_vars(Fetch(g)) /\ WF_vars(Answer(g)) /\ WF_vars(Apply(g))
    /\ \A s \in Servers : SF_vars(Refresh(s))
    /\ \A key \in Locks : \A v \in 1..MaxVersions : WF_vars(\E t \in taken : CommitVersion(t))
FairSpec == Spec /\ Fairness
Symmetry == Permutations(Gates) \cup Permutations(Servers)

\* No gate denies without a lock at its version, or misses one; but for locks that have ended by its clock, and
\* those that it has to fetch again because its clock was set back.
ViewIsTruth == \A g \in Gates :
    /\ gate[g].view \subseteq Truth(gate[g].seen)
    /\ Truth(gate[g].seen) \ gate[g].view \subseteq Ending
    /\ gate[g].clock = 0 /\ ~gate[g].dropped /\ line[g].phase = "idle" /\ gate[g].since # NoCursor
       => gate[g].view = Truth(gate[g].seen)
\* A gate at the database's version has its locks, whatever was restored.
CurrentViewIsDatabase == \A g \in Gates :
    gate[g].at = Position /\ taken = {} => gate[g].view \subseteq db.locks /\ db.locks \ gate[g].view \subseteq Ending
VersionsRise == wentBack = {}
\* The versions after `pruned_to` are all there, each with its mark and its change.
KeptIsComplete ==
    LET kept == (db.pruned + 1)..db.version IN
    kept \subseteq DOMAIN db.marks /\ kept \subseteq {db.changes[i].version : i \in DOMAIN db.changes}
\* Bounded liveness: when changes and faults have ended, each gate has the locks.
CatchesUp == \A g \in Gates : <>[](gate[g].view \cup Ending = db.locks \cup Ending)
=============================================================================
