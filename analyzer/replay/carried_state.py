"""State of a counter that is handed to the next one, as the store keeps it between two flushes."""

from __future__ import annotations

from analyzer.kernel.model import NO_HOUR, CounterState, IdState


def carried(earlier: CounterState, drained: CounterState | None) -> CounterState:
    """Returns the whole state after a drain, of the one before it and what is new since."""
    if drained is None:
        return earlier
    named_callers = [
        callers for callers in earlier.named if drained.kept is None or callers.hour in drained.kept
    ]
    return CounterState(
        reject_run=drained.reject_run,
        hour=earlier.hour if drained.hour == NO_HOUR else drained.hour,
        hour_before=earlier.hour_before if drained.hour_before == NO_HOUR else drained.hour_before,
        behind_run=drained.behind_run,
        named=[*named_callers, *drained.named],
        ids=_carried_ids(earlier.ids, drained.ids),
    )


def _carried_ids(earlier: IdState | None, drained: IdState | None) -> IdState | None:
    if drained is None:
        return earlier
    blobs = {} if earlier is None else {(blob.generation, blob.number): blob for blob in earlier.blobs}
    if drained.forgotten_to is not None:
        blobs = {key: blob for key, blob in blobs.items() if key[0] >= drained.forgotten_to}
    blobs |= {(blob.generation, blob.number): blob for blob in drained.blobs}
    return IdState(drained.reached_ms, drained.far_run, [blob for _, blob in sorted(blobs.items())])
