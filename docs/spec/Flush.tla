------------------------------- MODULE Flush -------------------------------
(* Analyzers store what they count: each flush is one transaction on PostgreSQL, statement by statement, with
   the row locks that its statements take at READ COMMITTED.

   A row is changed by a transaction only after it holds the row's lock, so what it writes is applied to the
   tables in the step Commit. The statements before that step take locks, and read.

   Any analyzer may believe at any time that a partition is assigned to it: a rebalance that times out, a
   process that was stopped for a minute. A connection may be lost at any statement; the server may commit or
   roll back long after its client has given up.                                                          *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

\* Names in the code. Actions of this module, and the functions that they describe:
\*   Assign       = analyzer.flush.sql_store.SqlStore.positions
\*   Count        = analyzer.flush.pipeline.Pipeline.count
\*   Forget       = analyzer.flush.pipeline.Pipeline.forget
\*   BeginFlush   = analyzer.flush.pipeline.Pipeline.begin_flush
\*   MoveOffsets  = analyzer.flush.flush.SqlFlush.move_offsets
\*   CheckPlan    = analyzer.flush.flush.SqlFlush.check_plan
\*   AddTotals    = analyzer.judging.sql.totals.add_totals
\*   AddCounts    = analyzer.counting.buckets.add_counts
\*   Judge        = analyzer.judging.judge.judge
\*   Publish      = analyzer.judging.locks.lock_feed.publish
\*   Commit       = analyzer.flush.sql_store.SqlStore.transaction
\*   Collect      = analyzer.flush.pipeline.Pipeline.collect
\*   StartOver    = analyzer.daemon.Daemon.start_over
\*   AdoptPlan    = analyzer.daemon.Daemon.adopt_plan
\*   Activate     = analyzer.judging.sql.plans.activate

CONSTANTS
    Analyzers,
    Log,         \* by partition, its records: <<caller, minute>>, or Dead for one that cannot be read
    Limits,      \* of the policies; all judge the sum of a caller's requests in the one window of this module
    Plans,       \* number of plans that come in force; all have these limits
    MaxFaults,   \* crashes, lost connections and rebalances
    Heartbeats,  \* whether flushes move the offsets of idle partitions
    \* The design; each one is FALSE in one broken variant:
    CompareAndSet,         \* an offset is moved only from where the flush began to count
    OffsetsInTransaction,  \* offsets move in the transaction that stores the counts
    JudgesTotals,          \* the judgement reads the total, whose row is locked; otherwise the bucket rows
    VersionFromRow,        \* the feed's version is a row, which is locked until commit; otherwise a sequence
    RowsSorted             \* a statement locks its rows in one order

Dead == <<0, 0>>
Parts == DOMAIN Log
Buckets == UNION {{Log[p][o] : o \in DOMAIN Log[p]} : p \in Parts} \ {Dead}
Callers == {b[1] : b \in Buckets}
Never == 99  \* the `next` of a total that has nothing more to judge

\* Logs for configurations.
LogCrossing == << <<<<1, 1>>>>, <<<<1, 2>>>> >>
LogThree == << <<<<1, 1>>, Dead, <<1, 2>>>> >>
LogTwoCallers == << <<<<1, 1>>, <<2, 1>>>>, <<<<2, 2>>, <<1, 2>>>> >>
LogSeparate == << <<<<1, 1>>>>, <<<<2, 1>>>> >>
LogUnsorted == << <<<<1, 1>>, <<2, 1>>>>, <<<<1, 2>>, <<2, 2>>>> >>

VARIABLES
    next,       \* offsets.next, by partition
    ledger,     \* offsets.seen, counted, dead
    used,       \* totals.used, by caller
    dueAt,      \* totals.next
    judgedBy,   \* totals.plan
    counts,     \* buckets, by caller and minute
    locks,      \* pairs of caller and limit
    feed,       \* the feed's version row
    sequence,   \* the sequence of the broken variant
    published,  \* versions with their locks, in the order of the commits
    plan,       \* number of the plan in force
    memory,     \* by analyzer and partition: [base, position] of what it has counted
    planOf,     \* the plan by which an analyzer counts
    flight,     \* by analyzer: the flush in flight
    orphan,     \* by analyzer: a transaction whose client has given up
    faults

store == <<next, ledger, used, dueAt, judgedBy, counts, locks, feed, sequence, published, plan>>
vars == <<store, memory, planOf, flight, orphan, faults>>

NoFlush == [step |-> "none", todo |-> <<>>, parts |-> <<>>, plan |-> 0, held |-> {}, due |-> {},
            sets |-> {}, version |-> 0, ok |-> TRUE]
NotAssigned == [base |-> 99, position |-> 99]
Least(S) == CHOOSE x \in S : \A y \in S : x <= y

RECURSIVE InOrder(_)
InOrder(S) == IF S = {} THEN <<>> ELSE <<Least(S)>> \o InOrder(S \ {Least(S)})
Orders(S) == IF RowsSorted THEN {InOrder(S)}
             ELSE {order \in [1..Cardinality(S) -> S] : \A i, j \in 1..Cardinality(S) : order[i] = order[j] => i = j}

\* The records that a flush stores, and how they add up.
Taken(t) == UNION {{<<p, o>> : o \in (t.parts[p].from + 1)..t.parts[p].to} : p \in DOMAIN t.parts}
In(t, b) == Cardinality({at \in Taken(t) : Log[at[1]][at[2]] = b})
Growth(t, c) == Cardinality({at \in Taken(t) : Log[at[1]][at[2]][1] = c})
Grown(t) == {c \in Callers : Growth(t, c) > 0}
DeadIn(t, p) == Cardinality({o \in (t.parts[p].from + 1)..t.parts[p].to : Log[p][o] = Dead})

Init ==
    /\ next = [p \in Parts |-> 0] /\ ledger = [p \in Parts |-> [seen |-> 0, counted |-> 0, dead |-> 0]]
    /\ used = [c \in Callers |-> 0] /\ dueAt = [c \in Callers |-> Least(Limits)]
    /\ judgedBy = [c \in Callers |-> 1] /\ counts = [b \in Buckets |-> 0]
    /\ locks = {} /\ feed = 0 /\ sequence = 0 /\ published = <<>> /\ plan = 1
    /\ memory = [a \in Analyzers |-> [p \in Parts |-> NotAssigned]]
    /\ planOf = [a \in Analyzers |-> 1]
    /\ flight = [a \in Analyzers |-> NoFlush] /\ orphan = [a \in Analyzers |-> NoFlush] /\ faults = 0

HeldByOthers(a) == UNION ({flight[b].held : b \in Analyzers \ {a}} \cup {orphan[b].held : b \in Analyzers})

--------------------------------------------------------------------------------
(* The loop of an analyzer. *)

\* The position comes from the database, in another transaction than the flushes.
Assign(a, p) ==
    /\ memory[a][p] = NotAssigned
    /\ memory' = [memory EXCEPT ![a][p] = [base |-> next[p], position |-> next[p]]]
    /\ UNCHANGED <<store, planOf, flight, orphan, faults>>

\* A rebalance: the partition is taken away, also while a flush that moves its offset is in flight.
Forget(a, p) ==
    /\ memory[a][p] # NotAssigned /\ faults < MaxFaults
    /\ memory' = [memory EXCEPT ![a][p] = NotAssigned] /\ faults' = faults + 1
    /\ UNCHANGED <<store, planOf, flight, orphan>>

Count(a, p) ==
    /\ memory[a][p] # NotAssigned /\ memory[a][p].position < Len(Log[p])
    /\ memory' = [memory EXCEPT ![a][p].position = @ + 1]
    /\ UNCHANGED <<store, planOf, flight, orphan, faults>>

\* One flush is in flight at a time. What is drained leaves memory, and counting continues behind it.
BeginFlush(a) ==
    LET assigned == {p \in Parts : memory[a][p] # NotAssigned}
        busy == {p \in assigned : memory[a][p].position > memory[a][p].base}
    IN
    /\ flight[a] = NoFlush
    /\ \E idle \in IF Heartbeats THEN SUBSET (assigned \ busy) ELSE {{}} :
        /\ busy \cup idle # {}
        /\ flight' = [flight EXCEPT ![a] = [NoFlush EXCEPT
            !.step = IF OffsetsInTransaction THEN "move_offsets" ELSE "check_plan",
            !.todo = InOrder(busy \cup idle),
            !.plan = planOf[a],
            !.parts = [p \in busy \cup idle |-> [from |-> memory[a][p].base, to |-> memory[a][p].position]]]]
        /\ memory' = [memory EXCEPT ![a] = [p \in Parts |->
            IF p \in busy THEN [memory[a][p] EXCEPT !.base = memory[a][p].position] ELSE memory[a][p]]]
    /\ UNCHANGED <<store, planOf, orphan, faults>>

Collect(a) ==
    /\ flight[a].step = "done"
    /\ flight' = [flight EXCEPT ![a] = NoFlush]
    /\ UNCHANGED <<store, memory, planOf, orphan, faults>>

Nothing == [p \in Parts |-> NotAssigned]

\* After PartitionLost: everything in memory is dropped, and Assign reads the stored positions.
StartOver(a) ==
    /\ flight[a].step = "PartitionLost"
    /\ flight' = [flight EXCEPT ![a] = NoFlush] /\ memory' = [memory EXCEPT ![a] = Nothing]
    /\ UNCHANGED <<store, planOf, orphan, faults>>

AdoptPlan(a) ==
    /\ flight[a].step = "PlanChanged"
    /\ flight' = [flight EXCEPT ![a] = NoFlush] /\ memory' = [memory EXCEPT ![a] = Nothing]
    /\ planOf' = [planOf EXCEPT ![a] = plan]
    /\ UNCHANGED <<store, orphan, faults>>

\* The process ends, or its connection does: the analyzer starts over without knowing the outcome. A flush that
\* was committed but not collected is a lost reply.
Lose(a) ==
    /\ faults < MaxFaults /\ orphan[a] = NoFlush
    /\ orphan' = [orphan EXCEPT ![a] = IF flight[a].step = "done" THEN NoFlush ELSE flight[a]]
    /\ flight' = [flight EXCEPT ![a] = NoFlush] /\ memory' = [memory EXCEPT ![a] = Nothing]
    /\ planOf' = [planOf EXCEPT ![a] = plan] /\ faults' = faults + 1
    /\ UNCHANGED store

--------------------------------------------------------------------------------
(* The statements of a flush. *)

Failed(t, error) == [t EXCEPT !.step = error, !.held = {}]

\* One UPDATE per partition, in order. The error is raised after the last one.
MoveOffsets(a) ==
    LET t == flight[a]
        p == Head(t.todo)
        row == <<"offsets", p>>
        fits == CompareAndSet => next[p] = t.parts[p].from
        moved == [t EXCEPT !.todo = Tail(@), !.ok = @ /\ fits, !.held = IF fits THEN @ \cup {row} ELSE @]
    IN
    /\ t.step = "move_offsets" /\ row \notin HeldByOthers(a)
    /\ flight' = [flight EXCEPT ![a] =
        CASE moved.todo # <<>> -> moved
          [] ~moved.ok -> Failed(moved, "PartitionLost")
          [] OTHER -> [moved EXCEPT !.step = "check_plan"]]
    /\ UNCHANGED <<store, memory, planOf, orphan, faults>>

\* A shared lock on the plan's row: flushes do not wait for each other here, an activation waits for them.
CheckPlan(a) ==
    LET t == flight[a] IN
    /\ t.step = "check_plan"
    /\ IF t.plan # plan
       THEN flight' = [flight EXCEPT ![a] = Failed(t, "PlanChanged")]
       ELSE \E order \in Orders(Grown(t)) :
            flight' = [flight EXCEPT ![a] = [t EXCEPT
                !.held = @ \cup {<<"plans">>},
                !.todo = order,
                !.due = IF JudgesTotals THEN {} ELSE Grown(t),
                !.step = CASE Grown(t) = {} -> "commit"
                           [] JudgesTotals -> "add_totals"
                           [] OTHER -> "add_counts"]]
    /\ UNCHANGED <<store, memory, planOf, orphan, faults>>

\* An upsert. It waits for each row in turn, and returns those that have reached their `next` or were judged by
\* another plan.
AddTotals(a) ==
    LET t == flight[a]
        c == Head(t.todo)
        row == <<"totals", c>>
        isDue == used[c] + Growth(t, c) >= dueAt[c] \/ judgedBy[c] # t.plan
    IN
    /\ t.step = "add_totals" /\ row \notin HeldByOthers(a)
    /\ flight' = [flight EXCEPT ![a] = [t EXCEPT
        !.todo = Tail(@), !.held = @ \cup {row}, !.due = IF isDue THEN @ \cup {c} ELSE @,
        !.step = IF Len(t.todo) = 1 THEN "add_counts" ELSE @]]
    /\ UNCHANGED <<store, memory, planOf, orphan, faults>>

BucketRows(t) == {<<"buckets", b>> : b \in {b \in Buckets : In(t, b) > 0}}

\* One step for all rows: the totals above them are locked already.
AddCounts(a) ==
    LET t == flight[a] IN
    /\ t.step = "add_counts" /\ BucketRows(t) \cap HeldByOthers(a) = {}
    /\ flight' = [flight EXCEPT ![a] = [t EXCEPT
        !.held = @ \cup BucketRows(t), !.step = IF t.due = {} THEN "commit" ELSE "judge"]]
    /\ UNCHANGED <<store, memory, planOf, orphan, faults>>

RECURSIVE SumOf(_)
SumOf(S) == IF S = {} THEN 0 ELSE LET b == CHOOSE b \in S : TRUE IN counts[b] + SumOf(S \ {b})
Standing(t, c) == Growth(t, c) + IF JudgesTotals THEN used[c] ELSE SumOf({b \in Buckets : b[1] = c})
LockRows(t) == {<<"locks", at>> : at \in locks \cap (t.due \X Limits)}

\* The locks that may be concerned are read FOR UPDATE: rows that exist are locked.
Judge(a) ==
    LET t == flight[a]
        sets == {at \in t.due \X Limits : Standing(t, at[1]) >= at[2]} \ locks
    IN
    /\ t.step = "judge" /\ LockRows(t) \cap HeldByOthers(a) = {}
    /\ flight' = [flight EXCEPT ![a] = [t EXCEPT
        !.held = @ \cup LockRows(t), !.sets = sets, !.step = IF sets = {} THEN "commit" ELSE "publish"]]
    /\ UNCHANGED <<store, memory, planOf, orphan, faults>>

Publish(a) ==
    LET t == flight[a] IN
    /\ t.step = "publish" /\ (VersionFromRow => <<"feed">> \notin HeldByOthers(a))
    /\ flight' = [flight EXCEPT ![a] = [t EXCEPT
        !.version = 1 + IF VersionFromRow THEN feed ELSE sequence,
        !.held = IF VersionFromRow THEN @ \cup {<<"feed">>} ELSE @,
        !.step = "commit"]]
    /\ sequence' = IF VersionFromRow THEN sequence ELSE sequence + 1
    /\ UNCHANGED <<next, ledger, used, dueAt, judgedBy, counts, locks, feed, published, plan>>
    /\ UNCHANGED <<memory, planOf, orphan, faults>>

Offsets(t) ==
    /\ next' = [p \in Parts |-> IF p \in DOMAIN t.parts THEN t.parts[p].to ELSE next[p]]
    /\ ledger' = [p \in Parts |->
        IF p \notin DOMAIN t.parts THEN ledger[p]
        ELSE LET seen == t.parts[p].to - t.parts[p].from IN
             [seen |-> ledger[p].seen + seen, dead |-> ledger[p].dead + DeadIn(t, p),
              counted |-> ledger[p].counted + seen - DeadIn(t, p)]]

\* What the transaction wrote becomes visible, at once.
Apply(t) ==
    /\ IF OffsetsInTransaction THEN Offsets(t) ELSE UNCHANGED <<next, ledger>>
    /\ used' = [c \in Callers |-> used[c] + Growth(t, c)]
    /\ counts' = [b \in Buckets |-> counts[b] + In(t, b)]
    /\ dueAt' = [c \in Callers |->
        LET above == {l \in Limits : l > used[c] + Growth(t, c)} IN
        IF c \notin t.due THEN dueAt[c] ELSE IF above = {} THEN Never ELSE Least(above)]
    /\ judgedBy' = [c \in Callers |-> IF c \in t.due THEN t.plan ELSE judgedBy[c]]
    /\ locks' = locks \cup t.sets
    /\ feed' = IF t.version > 0 /\ VersionFromRow THEN t.version ELSE feed
    /\ published' = IF t.version > 0 THEN Append(published, [version |-> t.version, sets |-> t.sets]) ELSE published

Commit(a) ==
    /\ flight[a].step = "commit"
    /\ Apply(flight[a])
    /\ flight' = [flight EXCEPT ![a].step = IF OffsetsInTransaction THEN "done" ELSE "half", ![a].held = {}]
    /\ UNCHANGED <<sequence, plan, memory, planOf, orphan, faults>>

\* Broken variant: the offsets follow in another transaction, if the client is still there to send it.
MoveOffsetsApart(a) ==
    LET t == flight[a]
        fits == \A p \in DOMAIN t.parts : CompareAndSet => next[p] = t.parts[p].from
    IN
    /\ t.step = "half"
    /\ IF fits THEN Offsets(t) ELSE UNCHANGED <<next, ledger>>
    /\ flight' = [flight EXCEPT ![a].step = IF fits THEN "done" ELSE "PartitionLost"]
    /\ UNCHANGED <<used, dueAt, judgedBy, counts, locks, feed, sequence, published, plan>>
    /\ UNCHANGED <<memory, planOf, orphan, faults>>

\* The server had received COMMIT before the connection was lost.
CommitLate(a) ==
    /\ orphan[a].step = "commit"
    /\ Apply(orphan[a])
    /\ orphan' = [orphan EXCEPT ![a] = NoFlush]
    /\ UNCHANGED <<sequence, plan, memory, planOf, flight, faults>>

\* It had not, and notices now.
RollBack(a) ==
    /\ orphan[a] # NoFlush
    /\ orphan' = [orphan EXCEPT ![a] = NoFlush]
    /\ UNCHANGED <<store, memory, planOf, flight, faults>>

\* Another plan, with these limits. The table lock waits for all flushes that have checked the plan.
Activate ==
    /\ plan < Plans
    /\ \A a \in Analyzers : <<"plans">> \notin flight[a].held \cup orphan[a].held
    /\ plan' = plan + 1
    /\ UNCHANGED <<next, ledger, used, dueAt, judgedBy, counts, locks, feed, sequence, published>>
    /\ UNCHANGED <<memory, planOf, flight, orphan, faults>>

--------------------------------------------------------------------------------

Step(a) ==
    \/ BeginFlush(a) \/ Collect(a) \/ StartOver(a) \/ AdoptPlan(a)
    \/ MoveOffsets(a) \/ CheckPlan(a) \/ AddTotals(a) \/ AddCounts(a) \/ Judge(a) \/ Publish(a) \/ Commit(a)
    \/ MoveOffsetsApart(a)
    \/ \E p \in Parts : Assign(a, p) \/ Count(a, p)
Fault(a) == Lose(a) \/ \E p \in Parts : Forget(a, p)

Next == Activate \/ \E a \in Analyzers : Step(a) \/ Fault(a) \/ CommitLate(a) \/ RollBack(a)
Spec == Init /\ [][Next]_vars

\* For the property of progress: each analyzer continues, and a server notices a lost connection.
Fairness == \A a \in Analyzers :
    /\ WF_vars(BeginFlush(a)) /\ WF_vars(Collect(a)) /\ WF_vars(StartOver(a)) /\ WF_vars(AdoptPlan(a))
    /\ SF_vars(MoveOffsets(a)) /\ WF_vars(CheckPlan(a)) /\ SF_vars(AddTotals(a)) /\ WF_vars(AddCounts(a))
    /\ WF_vars(Judge(a)) /\ SF_vars(Publish(a)) /\ WF_vars(Commit(a)) /\ WF_vars(RollBack(a))
    /\ \A p \in Parts : WF_vars(Assign(a, p)) /\ WF_vars(Count(a, p))
FairSpec == Spec /\ Fairness
Symmetry == Permutations(Analyzers)

(* What must hold after every commit. Variables of the store change in commits only. *)

\* The counts are those of the log up to the stored offsets: no record is lost, none is counted twice.
CountsArePrefix == \A b \in Buckets :
    counts[b] = Cardinality({<<p, o>> \in Parts \X (1..9) : o <= next[p] /\ Log[p][o] = b})
TotalsAreCounts == \A c \in Callers : used[c] = SumOf({b \in Buckets : b[1] = c})
LedgerBalances == \A p \in Parts :
    ledger[p].seen = next[p] /\ ledger[p].seen = ledger[p].counted + ledger[p].dead
\* No crossing is unseen, and no lock is without one.
LocksAreEarned == locks = {at \in Callers \X Limits : used[at[1]] >= at[2]}
NextIsAhead == \A c \in Callers : used[c] < dueAt[c]
\* Versions become visible in their order, without gaps, and each lock is published once.
VersionsInOrder == \A i \in DOMAIN published : published[i].version = i
PublishedOnce == \A i, j \in DOMAIN published : i # j => published[i].sets \cap published[j].sets = {}
FeedIsComplete == locks = UNION {published[i].sets : i \in DOMAIN published}
OffsetsNeverGoBack == [][\A p \in Parts : next'[p] >= next[p]]_vars

\* No transactions wait for each other in a circle.
Wants(t) ==
    CASE t.step = "move_offsets" -> {<<"offsets", Head(t.todo)>>}
      [] t.step = "add_totals" -> {<<"totals", Head(t.todo)>>}
      [] t.step = "add_counts" -> BucketRows(t)
      [] t.step = "judge" -> LockRows(t)
      [] t.step = "publish" -> {<<"feed">>}
      [] OTHER -> {}
NoCircularWait == \A S \in SUBSET Analyzers \ {{}} :
    \E a \in S : \A b \in S \ {a} : Wants(flight[a]) \cap flight[b].held = {}

EverythingIsCounted == <>[](\A p \in Parts : next[p] = Len(Log[p]))
=============================================================================
