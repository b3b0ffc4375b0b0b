------------------------------- MODULE Stale -------------------------------
(* The bound on the age of a view: a gate that shall not admit callers on a stale view takes its fast path away
   before the view gets stale, because requests on the fast path read no clock.

   Time is in ticks. The poller's thread runs when it is due, and a fetch ends within its longest time; a machine
   that stops threads for longer is left out.                                                               *)
EXTENDS Naturals

\* Names in the code. Actions of this module, and the functions that they describe:
\*   Prepare      = gatekeeper.gate_runtime.GateRuntime._prepare_for
\*   Answered     = gatekeeper.feed.poller.Poller._confirm
\*   Failed       = gatekeeper.feed.poller.Poller._fail
\*   Publish      = gatekeeper.gate_runtime.GateRuntime._publish
\*   TrustedUntil = gatekeeper.gate_runtime.GateRuntime.trusted_until_s

CONSTANTS
    StaleAfter, Longest, PauseMax, End,
    \* The design; each one is FALSE in one broken variant:
    PreparesFirst,  \* before a fetch, the fast path is taken away if the view may get stale until it ends
    LooksAhead      \* after it, if the view will be stale before the next step

VARIABLES now, confirmed, mode, phase, began, due
vars == <<now, confirmed, mode, phase, began, due>>

\* The gate starts at 0, with a saved view or none.
TrustedUntil(at) == at + StaleAfter
Init == now = 0 /\ confirmed = 0 /\ mode = "COLD" /\ phase = "waiting" /\ began = 0 /\ due = 0

Prepare ==
    /\ phase = "waiting" /\ now >= due
    /\ mode' = IF PreparesFirst /\ now + Longest >= TrustedUntil(confirmed) THEN "STALE" ELSE mode
    /\ phase' = "fetching" /\ began' = now
    /\ UNCHANGED <<now, confirmed, due>>

Publish(at, pause) ==
    /\ confirmed' = at /\ due' = now + pause /\ phase' = "waiting"
    /\ mode' = IF TrustedUntil(at) <= IF LooksAhead THEN now + pause ELSE now THEN "STALE" ELSE "READY"
    /\ UNCHANGED <<now, began>>
\* The answer is from the beginning of the fetch, or of the server's read in a long poll.
Answered == phase = "fetching" /\ \E at \in began..now, pause \in 1..PauseMax : Publish(at, pause)
Failed == phase = "fetching" /\ \E pause \in 1..PauseMax : Publish(confirmed, pause)

Tick ==
    /\ now < End /\ now' = now + 1
    /\ IF phase = "waiting" THEN now < due ELSE now < began + Longest
    /\ UNCHANGED <<confirmed, mode, phase, began, due>>

Next == Prepare \/ Answered \/ Failed \/ Tick
Spec == Init /\ [][Next]_vars

\* Requests are looked up in the view without a clock only while it may be trusted.
TrustedOnFastPath == mode = "READY" => now <= TrustedUntil(confirmed)
=============================================================================
