"""A bound on what kafka-python itself unpacks, where records are taken the public way.

The client has none of its own: 16 KB on the wire became 1.6 GB in memory. It looks its decoders up by name
in the two modules that read batches, and there ours take their place, for the whole process. Where that
does not work nothing is read the public way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import kafka
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords, default_records, legacy_records
from kafka.record.memory_records import MemoryRecordsBuilder

from analyzer.core.kafka_format.codecs import DamagedError, Decompressor, TooLargeError
from analyzer.errors import NotInstalled

Decode = Callable[[Any], bytes]

BATCH_BYTES_MAX = 64 << 20  # as in a record set: see analyzer.core.records.mapping
DECODERS = {"gzip_decode": 1, "snappy_decode": 2, "lz4_decode": 3, "zstd_decode": 4}
# Kafka before 0.10 wrote broken headers, which kafka-python mends and hands to a decoder of its own.
OLD_LZ4 = "lz4_decode_old_kafka"
ONE_AT_A_TIME = Lock()  # or several connections would take several times the bound


class BatchRefused(CorruptRecordError):  # type: ignore[misc]  # kafka-python has no types
    """A batch that is not unpacked."""


class BatchTooLarge(BatchRefused):
    """... because it expands beyond the bound."""


def bound_decompression(bytes_max: int = BATCH_BYTES_MAX) -> None:
    """From now on kafka-python raises BatchRefused instead of unpacking a batch beyond `bytes_max`.

    Raises NotInstalled when this kafka-python cannot be bounded; then it is as it was.
    """
    before = {name: getattr(default_records, name, None) for name in DECODERS}
    _install({name: _decoder(codec, 0) for name, codec in DECODERS.items()})
    if all(map(_refuses, DECODERS.values())):
        _install({name: _decoder(codec, bytes_max) for name, codec in DECODERS.items()})
        return
    _install(before)
    raise NotInstalled(
        f"kafka-python {kafka.__version__} is built otherwise than Gatelock knows it: it gives no whole "
        "batches, and no bound can be set on what it unpacks; install a release that Gatelock was tested "
        "with: 3.0.12"
    )


def _install(decoders: Mapping[str, Decode | None]) -> None:
    for name, decode in decoders.items():
        for module in (default_records, legacy_records):
            if decode is not None and hasattr(module, name):
                setattr(module, name, decode)
    if hasattr(legacy_records, OLD_LZ4):
        setattr(legacy_records, OLD_LZ4, _refuse_old)


def _refuses(codec: int) -> bool:
    """Whether a small batch is handed to our decoder, which takes none at all yet."""
    try:
        builder = MemoryRecordsBuilder(2, codec, 1024)
        builder.append(0, None, bytes(100))
        builder.close()
        for _ in MemoryRecords(builder.buffer()).next_batch():
            break
    except BatchRefused:
        return True
    except Exception:  # noqa: BLE001 - whatever it is: it is not what we know
        return False
    return False


def _decoder(codec: int, bytes_max: int) -> Decode:
    def decode(data: Any) -> bytes:
        try:
            with ONE_AT_A_TIME:
                return Decompressor(bytes_max).decompress(codec, memoryview(data))
        except TooLargeError:
            raise BatchTooLarge(f"a batch expands beyond {bytes_max >> 20} MB") from None
        except DamagedError:
            raise BatchRefused("a batch cannot be unpacked") from None

    return decode


def _refuse_old(data: Any) -> bytes:
    raise BatchRefused(f"a batch of {len(data)} bytes that a Kafka before 0.10 packed by lz4")
