"""A stopped broker's own files: the batches of a partition, harmed or cut off."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.servers.kafka import NativeKafka

Harm = Callable[[bytearray, int], None]


def segment(kafka: NativeKafka, topic: str, partition: int) -> Path:
    return kafka.folder / "data" / f"{topic}-{partition}" / "00000000000000000000.log"


def batches_of(log: bytes) -> list[int]:
    """Where each begins."""
    at, found = 0, []
    while at < len(log):
        found.append(at)
        at += 12 + struct.unpack_from(">i", log, at + 8)[0]
    return found


def harm(kafka: NativeKafka, topic: str, partition: int, batch: int, change: Harm) -> None:
    file = segment(kafka, topic, partition)
    content = bytearray(file.read_bytes())
    change(content, batches_of(bytes(content))[batch])
    file.write_bytes(content)


def cut(kafka: NativeKafka, topic: str, partition: int, batches: int) -> None:
    """Leave so many, as a leader that had no more when it was elected."""
    file = segment(kafka, topic, partition)
    content = file.read_bytes()
    file.write_bytes(content[: batches_of(content)[batches]])


def payload(log: bytearray, at: int) -> None:
    log[at + 80] ^= 0xFF


def claim(log: bytearray, at: int) -> None:
    """It claims a thousand offsets more."""
    struct.pack_into(">i", log, at + 23, 1009)


def length(log: bytearray, at: int) -> None:
    """It seems to be shorter."""
    struct.pack_into(">i", log, at + 8, 70)


def leader(log: bytearray, at: int) -> None:
    """It seems to come from a leader that there never was, which no checksum covers."""
    struct.pack_into(">i", log, at + 12, 1_000_000)
