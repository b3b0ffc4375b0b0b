"""State of a counter that is handed to the next one, as the store keeps it between two flushes."""

from __future__ import annotations

from analyzer.kernel.model import NO_HOUR, CounterState, IdState


def carried(before: CounterState, drained: CounterState | None) -> CounterState:
    """Returns the whole state after a drain, of the one before it and what is new since."""
    if drained is None:
        return before
    named = [one for one in before.named if drained.kept is None or one.hour in drained.kept]
    return CounterState(
        reject_run=drained.reject_run,
        hour=before.hour if drained.hour == NO_HOUR else drained.hour,
        hour_before=before.hour_before if drained.hour_before == NO_HOUR else drained.hour_before,
        behind_run=drained.behind_run,
        named=[*named, *drained.named],
        ids=_carried_ids(before.ids, drained.ids),
    )


def _carried_ids(before: IdState | None, drained: IdState | None) -> IdState | None:
    if drained is None:
        return before
    blobs = {} if before is None else {(blob.generation, blob.number): blob for blob in before.blobs}
    if drained.forgotten_to is not None:
        blobs = {at: blob for at, blob in blobs.items() if at[0] >= drained.forgotten_to}
    blobs |= {(blob.generation, blob.number): blob for blob in drained.blobs}
    return IdState(drained.reached_ms, drained.far_run, [blob for _, blob in sorted(blobs.items())])
