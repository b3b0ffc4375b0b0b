"""Decompression, and decompression bombs: few bytes that expand to many."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard

from analyzer.sources.batches.codecs import DamagedError, Decompressor, TooLargeError
from tests.support.recordsets import PACK

PLAIN = b'{"key":"acme"}\n' * 1000
BOMB_BYTES, BOUND_BYTES = 256 << 20, 16 << 20
ZEROES = bytes(1 << 20)


def streamed(begin: bytes, compress: Callable[[bytes], bytes], end: Callable[[], bytes]) -> bytes:
    return begin + b"".join(compress(ZEROES) for _ in range(BOMB_BYTES // len(ZEROES))) + end()


def gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return streamed(b"", packer.compress, packer.flush)


def lz4_bomb() -> bytes:
    packer = lz4.frame.LZ4FrameCompressor()
    return streamed(packer.begin(), packer.compress, packer.flush)


def zstd_bomb() -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return streamed(b"", packer.compress, packer.flush)


def wide_zstd_bomb() -> bytes:
    """Level 22 has a window of up to 128 MB in addition to the output."""
    packer = zstandard.ZstdCompressor(level=22).compressobj()
    small = zstandard.ZstdCompressor().compress(b"a small one before it")
    return streamed(small, packer.compress, packer.flush)


def snappy_bomb() -> bytes:
    return bytes(cramjam.snappy.compress_raw(bytes(BOUND_BYTES + 1)))


def xerial_bomb() -> bytes:
    """Many blocks, each of them small."""
    block = bytes(cramjam.snappy.compress_raw(ZEROES))
    return b"\x82SNAPPY\0" + bytes(8) + (len(block).to_bytes(4, "big") + block) * (BOMB_BYTES // len(ZEROES))


def lz4_with_wrong_size(size: int) -> bytes:
    """A frame that states a wrong size, with a matching header checksum."""
    frame = bytearray(lz4.frame.compress(PLAIN, store_size=True))
    frame[6:14] = size.to_bytes(8, "little")
    for check in range(256):
        frame[14] = check
        try:
            lz4.frame.get_frame_info(bytes(frame))
        except RuntimeError:
            continue
        return bytes(frame)
    raise AssertionError("no checksum fits")


LARGEST_BOMB = "zstd with a large window"
BOMBS = {
    "none": (0, lambda: bytes(BOUND_BYTES + 1)),
    "gzip": (1, gzip_bomb),
    "snappy": (2, snappy_bomb),
    "xerial": (2, xerial_bomb),
    "snappy that states 4 GB": (2, lambda: b"\xff\xff\xff\xff\x0f" + bytes(50)),
    "lz4": (3, lz4_bomb),
    "lz4 that states 1 TB": (3, lambda: lz4_with_wrong_size(1 << 40)),
    "zstd": (4, zstd_bomb),
    "zstd with a large window": (4, wide_zstd_bomb),
    "zstd with a window of 2 GB": (4, lambda: b"\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00x"),
}
MEASURE = """
import sys
from analyzer.sources.batches.codecs import DamagedError, TooLargeError, Decompressor
def peak_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
data, decompressor = sys.stdin.buffer.read(), Decompressor(int(sys.argv[2]))
before_kb = peak_kb()
try:
    decompressor.decompress(int(sys.argv[1]), memoryview(data))
except (TooLargeError, DamagedError) as refused:
    print(type(refused).__name__, peak_kb() - before_kb)
"""


@pytest.mark.parametrize("codec", PACK)
@pytest.mark.parametrize(
    "plain", [PLAIN, b"", b"x", bytes(3 << 20)], ids=["text", "nothing", "a byte", "3 MB"]
)
def test_compressed_data_is_restored(codec: str, plain: bytes) -> None:
    number, pack = PACK[codec]
    assert Decompressor(len(plain)).decompress(number, memoryview(pack(plain))) == plain


@pytest.mark.parametrize("codec", PACK)
def test_one_byte_beyond_the_bound_is_too_much(codec: str) -> None:
    number, pack = PACK[codec]
    with pytest.raises(TooLargeError):
        Decompressor(len(PLAIN) - 1).decompress(number, memoryview(pack(PLAIN)))


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        pytest.param(*values, id=name, marks=[pytest.mark.deep("size")] if name == LARGEST_BOMB else [])
        for name, values in BOMBS.items()
    ],
)
def test_a_bomb_is_refused_and_takes_little_memory(codec: int, bomb: Callable[[], bytes]) -> None:
    """In a separate process, so that its peak memory can be measured."""
    command = [sys.executable, "-c", MEASURE, str(codec), str(BOUND_BYTES)]
    ran = subprocess.run(command, input=bomb(), capture_output=True, check=True)
    refused, grown_kb = ran.stdout.split()
    assert refused in {b"TooLargeError", b"DamagedError"}
    assert int(grown_kb) * 1024 < 1.5 * BOUND_BYTES


@pytest.mark.parametrize("codec", [name for name in PACK if name != "none"])
def test_damage_is_an_error_and_does_not_affect_the_next_call(codec: str) -> None:
    number, pack = PACK[codec]
    decompressor, packed = Decompressor(1 << 20), pack(PLAIN)
    for broken in (b"x" + packed, packed + b"rubbish", packed[: len(packed) // 2]):
        try:
            plain = decompressor.decompress(number, memoryview(broken))
        except DamagedError:
            pass
        else:  # zstd returns what it could read, and the records in it are not complete
            assert (codec[:4], len(plain) < len(PLAIN)) == ("zstd", True)
        assert decompressor.decompress(number, memoryview(packed)) == PLAIN


def test_data_of_the_highest_level_is_restored() -> None:
    packer = zstandard.ZstdCompressor(level=22).compressobj()
    packed = packer.compress(PLAIN) + packer.flush()
    assert zstandard.get_frame_parameters(packed).window_size == 1 << 27
    assert Decompressor(len(PLAIN)).decompress(4, memoryview(packed)) == PLAIN


def test_several_streams_in_a_row_are_concatenated() -> None:
    decompressor = Decompressor(1 << 20)
    assert decompressor.decompress(1, memoryview(gzip.compress(b"one") + gzip.compress(b"two"))) == b"onetwo"
    assert (
        decompressor.decompress(3, memoryview(lz4.frame.compress(b"one") + lz4.frame.compress(b"two")))
        == b"onetwo"
    )
    pack = zstandard.ZstdCompressor().compress
    assert decompressor.decompress(4, memoryview(pack(b"one") + pack(b"two"))) == b"onetwo"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_a_key_error(codec: int) -> None:
    with pytest.raises(KeyError):
        Decompressor(1 << 20).decompress(codec, memoryview(PLAIN))
