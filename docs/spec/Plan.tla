-------------------------------- MODULE Plan --------------------------------
(* A new plan comes in force beside flushes of analyzers that count by the old one or the new one, and totals
   and locks are made to agree with it in steps: fill, judge, clear.

   One window, which does not end. Of a flush two steps matter: CheckPlan, which takes a shared lock on the
   plan's row, and Apply, which stands for its other statements and the commit (Flush has them one by one, and
   shows that two flushes do not add to one total together). An activation that does several steps in one
   transaction is left out: without the moments in between, fewer things can happen.                        *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

\* Names in the code. Actions of this module, and the functions that they describe:
\*   CheckPlan          = analyzer.flush.flush.SqlFlush.check_plan
\*   Apply              = analyzer.flush.flush.SqlFlush.apply
\*   Growth             = analyzer.judging.totals.totals_growth
\*   AdoptPlan          = analyzer.daemon.Daemon.adopt_plan
\*   Activate           = analyzer.judging.sql.plans.activate
\*   StepsAfter         = analyzer.judging.activation_steps.steps_after
\*   UnreadyPolicies    = analyzer.judging.activation_steps.unready_policies
\*   ContinueActivation = analyzer.judging.sql.plans.continue_activation
\*   Fill               = analyzer.judging.sql.activation.Activation._fill
\*   JudgeTotals        = analyzer.judging.sql.activation.Activation._judge
\*   ClearLocks         = analyzer.judging.sql.activation.Activation._clear
\*   IsByThisPlan       = analyzer.judging.sql.activation.Activation._is_by_this_plan

CONSTANTS
    Files,          \* by analyzer: the plans that its file may have when it starts, numbers of Bodies
    Rows,           \* the rows of buckets in the order of their key: the caller of each
    Records,        \* of the log: the row to which each adds 1
    MaxActivations, MaxClock,
    MaxRestores,    \* of a dump of the database that may be older than the plan in force
    ClockStepsBack, \* whether the database's clock may be set back by 1
    \* The design; each one is FALSE in one broken variant:
    TableLock,      \* steps wait for flushes that have checked the plan, and flushes for steps
    StoredPosition, \* a flush adds to a sum that is filled only what is before the stored position
    NewNumbers,     \* a sum that was dropped gets a new number, and so no totals, when it is needed again
    ComparesPlan,   \* flushes compare the plan, not only its number
    ClearRewrites,  \* a clear step writes earned locks of another plan again
    ClearIgnoresTime  \* and removes locks that are not earned, whenever they began

\* Plans: sets of policies <<name, sum, limit>>.
Bodies == <<
    {<<1, "s1", 2>>},
    {<<1, "s1", 1>>, <<2, "s2", 2>>},
    {<<1, "s2", 2>>},
    {}>>
Sums == {"s1", "s2"}
Policies == {1, 2}
Callers == {Rows[r] : r \in DOMAIN Rows}
Analyzers == DOMAIN Files
End == Len(Rows) + 1
Never == 99

\* For configurations.
FilesTwo == <<{1, 2}, {3}>>
FilesSmall == <<{1}, {2}>>
FilesThree == <<{1, 4}, {2, 3}>>
RowsTwo == <<1, 1>>
RowsThree == <<1, 2, 1>>
RecordsTwo == <<1, 2>>
RecordsThree == <<1, 2, 3>>

VARIABLES
    plan,      \* the row in force: [version, body, at]; `at` is when it came in force
    pending,   \* plans.pending: the steps that are left
    buckets,   \* by row: its value
    used,      \* totals.used, by sum and caller
    dueAt,     \* totals.next
    judgedBy,  \* totals.plan
    locks,     \* by policy and caller: NoLock, or [began, rule]
    counted,   \* records before the stored offsets
    clock,     \* of the database
    countsBy,  \* by analyzer: the plan by which it counts
    flight,    \* by analyzer: its flush behind CheckPlan
    activations, dump, restores,
    countedWrongly  \* records that were counted by a plan that was not in force

tables == <<plan, pending, buckets, used, dueAt, judgedBy, locks, counted>>
vars == <<tables, clock, countsBy, flight, activations, dump, restores, countedWrongly>>

NoLock == [began |-> 0, rule |-> <<>>]
NoFlush == [records |-> {}, now |-> 0, pending |-> <<>>, version |-> 0, body |-> 4]
NoDump == <<>>
PolicyOf(body, name) == {p \in Bodies[body] : p[1] = name}
Names(body) == {p[1] : p \in Bodies[body]}
SumsOf(body) == {p[2] : p \in Bodies[body]}
LimitsOf(body, s) == {p[3] : p \in {p \in Bodies[body] : p[2] = s}}
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
RECURSIVE Total(_, _)
Total(f, S) == IF S = {} THEN 0 ELSE LET x == CHOOSE x \in S : TRUE IN f[x] + Total(f, S \ {x})
RowsOf(c) == {r \in DOMAIN Rows : Rows[r] = c}
\* TRUE while no flush is behind CheckPlan.
NoFlushes == \A a \in Analyzers : flight[a] = NoFlush

Init ==
    /\ plan = [version |-> 1, body |-> 4, at |-> 1] /\ pending = <<>>
    /\ buckets = [r \in DOMAIN Rows |-> 0]
    /\ used = [s \in Sums |-> [c \in Callers |-> 0]]
    /\ dueAt = [s \in Sums |-> [c \in Callers |-> 0]] /\ judgedBy = [s \in Sums |-> [c \in Callers |-> 0]]
    /\ locks = [p \in Policies |-> [c \in Callers |-> NoLock]]
    /\ counted = {} /\ clock = 1
    /\ countsBy = [a \in Analyzers |-> plan] /\ flight = [a \in Analyzers |-> NoFlush]
    /\ activations = 0 /\ dump = NoDump /\ restores = 0 /\ countedWrongly = {}

--------------------------------------------------------------------------------
(* Flushes. *)

Agrees(a) == countsBy[a].version = plan.version /\ (ComparesPlan => countsBy[a].body = plan.body)

\* A flush of some records, counted by the analyzer's plan. Compare-and-set (see Flush) keeps it from records
\* that another flush stores.
CheckPlan(a) ==
    /\ flight[a] = NoFlush /\ Agrees(a)
    /\ \E S \in SUBSET (DOMAIN Records \ (counted \cup UNION {flight[b].records : b \in Analyzers})) :
        /\ S # {}
        /\ flight' = [flight EXCEPT ![a] = [records |-> S, now |-> clock, pending |-> pending,
            version |-> plan.version, body |-> countsBy[a].body]]
    /\ UNCHANGED <<tables, clock, countsBy, activations, dump, restores, countedWrongly>>

\* After PlanChanged.
AdoptPlan(a) ==
    /\ flight[a] = NoFlush /\ ~Agrees(a)
    /\ countsBy' = [countsBy EXCEPT ![a] = plan]
    /\ UNCHANGED <<tables, clock, flight, activations, dump, restores, countedWrongly>>

Filling(steps) == {steps[i].sum : i \in {i \in DOMAIN steps : steps[i].kind = "fill"}}
FilledTo(steps, s) == LET i == CHOOSE i \in DOMAIN steps : steps[i].kind = "fill" /\ steps[i].sum = s IN steps[i].to

\* What a flush adds to the total of a caller.
Growth(t, s, c) == Cardinality({n \in t.records :
    /\ Rows[Records[n]] = c
    /\ s \in Filling(t.pending) /\ StoredPosition => Records[n] < FilledTo(t.pending, s)})

\* Totals, buckets, judgement, commit. A row of totals that is inserted gets the least limit as its `next`.
Apply(a) ==
    LET t == flight[a]
        sums == SumsOf(t.body)
        inserted(s, c) == used[s][c] = 0
        now(s, c) == used[s][c] + Growth(t, s, c)
        next(s, c) == IF inserted(s, c) THEN Least(LimitsOf(t.body, s)) ELSE dueAt[s][c]
        by(s, c) == IF inserted(s, c) THEN t.version ELSE judgedBy[s][c]
        grows(s, c) == s \in sums /\ Growth(t, s, c) > 0
        due(s, c) == /\ grows(s, c) /\ s \notin Filling(t.pending)
                     /\ now(s, c) >= next(s, c) \/ by(s, c) # t.version
        above(s, c) == {l \in LimitsOf(t.body, s) : l > now(s, c)}
        wants(p, c) == \E q \in PolicyOf(t.body, p) : due(q[2], c) /\ now(q[2], c) >= q[3]
    IN
    /\ t # NoFlush
    /\ used' = [s \in Sums |-> [c \in Callers |-> IF grows(s, c) THEN now(s, c) ELSE used[s][c]]]
    /\ dueAt' = [s \in Sums |-> [c \in Callers |->
        CASE due(s, c) -> (IF above(s, c) = {} THEN Never ELSE Least(above(s, c)))
          [] grows(s, c) -> next(s, c)
          [] OTHER -> dueAt[s][c]]]
    /\ judgedBy' = [s \in Sums |-> [c \in Callers |->
        CASE due(s, c) -> t.version [] grows(s, c) -> by(s, c) [] OTHER -> judgedBy[s][c]]]
    \* A lock that is there and lasts long enough is not set again, whatever rule it has.
    /\ locks' = [p \in Policies |-> [c \in Callers |->
        IF wants(p, c) /\ locks[p][c] = NoLock
        THEN [began |-> t.now, rule |-> CHOOSE q \in PolicyOf(t.body, p) : TRUE] ELSE locks[p][c]]]
    /\ buckets' = [r \in DOMAIN Rows |-> buckets[r] + Cardinality({n \in t.records : Records[n] = r})]
    /\ counted' = counted \cup t.records
    /\ countedWrongly' = IF t.body = plan.body THEN countedWrongly ELSE countedWrongly \cup t.records
    /\ flight' = [flight EXCEPT ![a] = NoFlush]
    /\ UNCHANGED <<plan, pending, clock, countsBy, activations, dump, restores>>

RollBack(a) ==
    /\ flight[a] # NoFlush
    /\ flight' = [flight EXCEPT ![a] = NoFlush]
    /\ UNCHANGED <<tables, clock, countsBy, activations, dump, restores, countedWrongly>>

--------------------------------------------------------------------------------
(* Activations. *)

RECURSIVE InOrder(_)
InOrder(S) == IF S = {} THEN <<>>
    ELSE LET x == IF "s1" \in S THEN "s1" ELSE "s2" IN <<x>> \o InOrder(S \ {x})
Each(sums, step(_)) == LET order == InOrder(sums) IN [i \in DOMAIN order |-> step(order[i])]

NamesIn(steps) == UNION {IF steps[i].kind = "fill" THEN {} ELSE steps[i].names : i \in DOMAIN steps}

StepsAfter(before, unfinished, body) ==
    LET changed == {p \in Names(body) : PolicyOf(body, p) # PolicyOf(before, p)}
                   \cup (Names(before) \ Names(body)) \cup NamesIn(unfinished)
        filled == {s \in SumsOf(body) : s \notin SumsOf(before) \/ s \in Filling(unfinished)}
        of(s) == {p \in changed : \E q \in PolicyOf(body, p) : q[2] = s}
        fill(s) == [kind |-> "fill", sum |-> s, to |-> IF s \in Filling(unfinished) THEN FilledTo(unfinished, s) ELSE 1]
        judge(s) == [kind |-> "judge", sum |-> s, names |-> of(s), behind |-> 0]
        judged(sums) == {s \in sums : of(s) # {}}
        existed(names) == {p \in names : p \in Names(before) \/ unfinished # <<>>}
        clear(names) == IF existed(names) = {} THEN <<>>
                        ELSE <<[kind |-> "clear", names |-> existed(names), behind |-> <<0, 0>>]>>
        ready == SumsOf(body) \ filled
    IN Each(judged(ready), judge) \o clear(UNION {of(s) : s \in ready} \cup (changed \ Names(body)))
       \o Each(filled, fill) \o Each(judged(filled), judge) \o clear(UNION {of(s) : s \in filled})

\* An analyzer starts, and puts the plan of its file in force.
Activate(a) == \E body \in Files[a] :
    /\ activations < MaxActivations /\ NoFlushes
    /\ IF body = plan.body
       THEN /\ countsBy' = [countsBy EXCEPT ![a] = plan] /\ UNCHANGED <<tables, activations>>
       ELSE LET new == [version |-> plan.version + 1, body |-> body, at |-> clock]
                \* Totals of a new number; those of the old one are read by nothing any more.
                isNew(s) == s \in SumsOf(body) \ SumsOf(plan.body) /\ NewNumbers
            IN
            /\ plan' = new /\ activations' = activations + 1
            /\ pending' = StepsAfter(plan.body, pending, body)
            /\ used' = [s \in Sums |-> IF isNew(s) THEN [c \in Callers |-> 0] ELSE used[s]]
            /\ dueAt' = [s \in Sums |-> IF isNew(s) THEN [c \in Callers |-> 0] ELSE dueAt[s]]
            /\ judgedBy' = [s \in Sums |-> IF isNew(s) THEN [c \in Callers |-> 0] ELSE judgedBy[s]]
            /\ countsBy' = [countsBy EXCEPT ![a] = new]
            /\ UNCHANGED <<buckets, locks, counted>>
    /\ UNCHANGED <<clock, flight, dump, restores, countedWrongly>>

After(step) == pending' = IF step = <<>> THEN Tail(pending) ELSE step \o Tail(pending)

\* One row of buckets: the stored position moves to the row behind it.
Fill(step) ==
    LET rows == {r \in DOMAIN Rows : r >= step.to /\ buckets[r] > 0}
        first == Least(rows)
        behind == rows \ {first}
        s == step.sum
        c == Rows[first]
    IN
    /\ step.kind = "fill"
    /\ IF rows = {}
       THEN After(<<>>) /\ UNCHANGED <<used, dueAt, judgedBy>>
       ELSE /\ used' = [used EXCEPT ![s][c] = @ + buckets[first]]
            /\ dueAt' = IF used[s][c] = 0 THEN [dueAt EXCEPT ![s][c] = Least(LimitsOf(plan.body, s))] ELSE dueAt
            /\ judgedBy' = IF used[s][c] = 0 THEN [judgedBy EXCEPT ![s][c] = plan.version] ELSE judgedBy
            /\ After(IF behind = {} THEN <<>> ELSE <<[step EXCEPT !.to = Least(behind)]>>)
    /\ UNCHANGED locks

IsByThisPlan(p, c) == locks[p][c] # NoLock /\ locks[p][c].began > plan.at

Lock(p) == [began |-> clock, rule |-> CHOOSE q \in PolicyOf(plan.body, p) : TRUE]

\* One total. It has the locks that the named policies want written again, because a lock carries their rules.
JudgeTotals(step) ==
    LET callers == {c \in Callers : c > step.behind /\ used[step.sum][c] > 0}
        c == Least(callers)
        wants(p) == \E q \in PolicyOf(plan.body, p) : q[2] = step.sum /\ used[step.sum][c] >= q[3]
    IN
    /\ step.kind = "judge"
    /\ IF callers = {}
       THEN After(<<>>) /\ UNCHANGED locks
       ELSE /\ locks' = [p \in Policies |->
                IF p \in step.names /\ wants(p) /\ ~IsByThisPlan(p, c)
                THEN [locks[p] EXCEPT ![c] = Lock(p)]
                ELSE locks[p]]
            /\ After(<<[step EXCEPT !.behind = c]>>)
    /\ UNCHANGED <<used, dueAt, judgedBy>>

Earned(p, c) == \E q \in PolicyOf(plan.body, p) : used[q[2]][c] >= q[3]
IsBehind(at, other) == at[2] > other[2] \/ (at[2] = other[2] /\ at[1] > other[1])

\* One lock.
ClearLocks(step) ==
    LET found == {at \in step.names \X Callers : locks[at[1]][at[2]] # NoLock /\ IsBehind(at, step.behind)}
        at == CHOOSE at \in found : \A other \in found : at = other \/ IsBehind(other, at)
        p == at[1]
        c == at[2]
    IN
    /\ step.kind = "clear"
    /\ IF found = {}
       THEN After(<<>>) /\ UNCHANGED locks
       ELSE /\ locks' =
                CASE ~Earned(p, c) /\ (ClearIgnoresTime \/ ~IsByThisPlan(p, c)) -> [locks EXCEPT ![p][c] = NoLock]
                  [] Earned(p, c) /\ ClearRewrites /\ ~IsByThisPlan(p, c) -> [locks EXCEPT ![p][c] = Lock(p)]
                  [] OTHER -> locks
            /\ After(<<[step EXCEPT !.behind = at]>>)
    /\ UNCHANGED <<used, dueAt, judgedBy>>

\* A job of any analyzer. A crash rolls its transaction back: `pending` is as it was.
ContinueActivation ==
    /\ pending # <<>> /\ (TableLock => NoFlushes)
    /\ LET step == Head(pending) IN Fill(step) \/ JudgeTotals(step) \/ ClearLocks(step)
    /\ UNCHANGED <<plan, buckets, counted, clock, countsBy, flight, activations, dump, restores, countedWrongly>>

--------------------------------------------------------------------------------
(* The world. *)

Tick ==
    /\ clock < MaxClock /\ clock' = clock + 1
    /\ UNCHANGED <<tables, countsBy, flight, activations, dump, restores, countedWrongly>>
StepBack ==
    /\ ClockStepsBack /\ clock > 1 /\ clock' = clock - 1
    /\ UNCHANGED <<tables, countsBy, flight, activations, dump, restores, countedWrongly>>

Dump ==
    /\ restores < MaxRestores /\ dump = NoDump /\ dump' = tables
    /\ UNCHANGED <<tables, clock, countsBy, flight, activations, restores, countedWrongly>>
\* Connections end, and with them flushes. Analyzers start over; they keep their plan. It takes a while.
Restore ==
    /\ dump # NoDump /\ restores < MaxRestores
    /\ plan' = dump[1] /\ pending' = dump[2] /\ buckets' = dump[3] /\ used' = dump[4] /\ dueAt' = dump[5]
    /\ judgedBy' = dump[6] /\ locks' = dump[7] /\ counted' = dump[8]
    /\ clock' = clock + 1 /\ flight' = [a \in Analyzers |-> NoFlush] /\ restores' = restores + 1
    /\ UNCHANGED <<countsBy, activations, dump, countedWrongly>>

Next ==
    \/ \E a \in Analyzers : CheckPlan(a) \/ AdoptPlan(a) \/ Apply(a) \/ RollBack(a) \/ Activate(a)
    \/ ContinueActivation \/ Tick \/ StepBack \/ Dump \/ Restore
Spec == Init /\ [][Next]_vars

Steps == {pending[i] : i \in DOMAIN pending}
UnreadyPolicies ==
    {p \in Names(plan.body) : (\E q \in PolicyOf(plan.body, p) : q[2] \in Filling(pending)) \/ p \in NamesIn(pending)}
BucketsBefore(c, to) == Total(buckets, {r \in RowsOf(c) : r < to})

\* A record is counted by the plan that is in force when it is stored.
CountedByOnePlan == countedWrongly = {}
BucketsAreLog == \A r \in DOMAIN Rows : buckets[r] = Cardinality({n \in counted : Records[n] = r})
\* A sum that is ready holds all buckets; one that is being filled holds those before the stored position.
TotalsAreBuckets == \A s \in SumsOf(plan.body), c \in Callers :
    used[s][c] = BucketsBefore(c, IF s \in Filling(pending) THEN FilledTo(pending, s) ELSE End)
\* A policy that is in effect has locked every caller that has reached its limit,
InEffect == \A p \in Names(plan.body) \ UnreadyPolicies : \A c \in Callers : Earned(p, c) => locks[p][c] # NoLock
\* and by its present rule.
RulesAreOfPlan == \A p \in Names(plan.body) \ UnreadyPolicies : \A c \in Callers :
    locks[p][c] # NoLock => locks[p][c].rule \in PolicyOf(plan.body, p)
\* No lock stays that the plan does not want: it is earned, or a step will reach it.
LocksAreEarned == \A p \in Policies, c \in Callers : locks[p][c] # NoLock =>
    Earned(p, c) \/ \E step \in Steps : step.kind = "clear" /\ p \in step.names /\ IsBehind(<<p, c>>, step.behind)
=============================================================================
