"""A bound on what kafka-python decompresses by itself (feature "decompression-bound").

kafka-python has none: 16 KB on the wire became 1.6 GB in memory. It looks its decoders up by name in the two
modules that read batches, and `install` replaces them there, for the whole process. Import it only where the
feature is supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from kafka.record import MemoryRecords, default_records, legacy_records
from kafka.record.memory_records import MemoryRecordsBuilder

from analyzer.sources.batches.codecs import DamagedError, Decompressor, TooLargeError
from analyzer.sources.kafka.internals.interfaces import BatchRefused, BatchTooLarge

Decode = Callable[[Any], bytes]

DECODERS = {"gzip_decode": 1, "snappy_decode": 2, "lz4_decode": 3, "zstd_decode": 4}
# Kafka before 0.10 wrote broken headers, for which kafka-python has a separate decoder.
OLD_LZ4 = "lz4_decode_old_kafka"
ONE_AT_A_TIME = Lock()  # or several connections would take several times the bound


def install(bytes_max: int) -> bool:
    """Makes kafka-python raise BatchRefused instead of decompressing a batch beyond `bytes_max`.

    Returns whether it does, by a trial with each codec; otherwise kafka-python is left as it was.
    """
    originals = _installed()
    _install({name: _decoder(codec, 0) for name, codec in DECODERS.items()})
    if all(map(_is_refused, DECODERS.values())):
        _install({name: _decoder(codec, bytes_max) for name, codec in DECODERS.items()})
        return True
    for (module, name), decode in originals.items():
        setattr(module, name, decode)
    return False


def _installed() -> dict[tuple[Any, str], Any]:
    names = [*DECODERS, OLD_LZ4]
    modules = (default_records, legacy_records)
    return {
        (module, name): vars(module)[name] for module in modules for name in names if name in vars(module)
    }


def _install(decoders: Mapping[str, Decode]) -> None:
    for module, name in _installed():
        setattr(module, name, _refuse_old_lz4 if name == OLD_LZ4 else decoders[name])


def _is_refused(codec: int) -> bool:
    """Whether kafka-python hands a small batch to our decoder, which at first refuses everything."""
    try:
        builder = MemoryRecordsBuilder(2, codec, 1024)
        builder.append(0, None, bytes(100))
        builder.close()
        for _ in MemoryRecords(builder.buffer()).next_batch():
            break
    except BatchRefused:
        return True
    except Exception:  # noqa: BLE001 - any other error says as well that the decoder was not called
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
            raise BatchRefused("a batch cannot be decompressed") from None

    return decode


def _refuse_old_lz4(data: Any) -> bytes:
    raise BatchRefused(f"a batch of {len(data)} bytes was compressed with lz4 by a Kafka before 0.10")
