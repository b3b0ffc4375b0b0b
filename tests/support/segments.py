"""Log segments of a stopped broker: batches of a partition are damaged or cut off."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.servers.kafka import NativeKafka

Damage = Callable[[bytearray, int], None]


def segment_file(kafka: NativeKafka, topic: str, partition: int) -> Path:
    return kafka.folder / "data" / f"{topic}-{partition}" / "00000000000000000000.log"


def batches_of(log: bytes) -> list[int]:
    """Returns the position of each batch."""
    at, found = 0, []
    while at < len(log):
        found.append(at)
        at += 12 + struct.unpack_from(">i", log, at + 8)[0]
    return found


def damage(kafka: NativeKafka, topic: str, partition: int, batch: int, change: Damage) -> None:
    """Changes a batch of the segment with `change(log, position)`."""
    file = segment_file(kafka, topic, partition)
    content = bytearray(file.read_bytes())
    change(content, batches_of(bytes(content))[batch])
    file.write_bytes(content)


def cut(kafka: NativeKafka, topic: str, partition: int, batches: int) -> None:
    """Keeps the first `batches`, as a leader that had no more when it was elected."""
    file = segment_file(kafka, topic, partition)
    content = file.read_bytes()
    file.write_bytes(content[: batches_of(content)[batches]])


def flip_payload(log: bytearray, at: int) -> None:
    """Flips bits that the checksum covers; a second time restores them."""
    log[at + 80] ^= 0xFF


def raise_last_offset(log: bytearray, at: int) -> None:
    """Has the batch claim a thousand offsets more."""
    struct.pack_into(">i", log, at + 23, 1009)


def shorten_length(log: bytearray, at: int) -> None:
    """Has the batch claim to be shorter."""
    struct.pack_into(">i", log, at + 8, 70)


def raise_leader_epoch(log: bytearray, at: int) -> None:
    """Sets the epoch of a leader that never existed; the checksum does not cover it."""
    struct.pack_into(">i", log, at + 12, 1_000_000)
