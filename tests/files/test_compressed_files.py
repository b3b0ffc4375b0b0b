"""Compressed logs: several members, seeking, padding, data that end too early or are damaged."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable

import pytest
import zstandard

from analyzer.sources.files.compressed_files import DamagedFile, plain_content

TEXT = random.Random(2).randbytes(300_000).hex().encode()
Pack = Callable[[bytes], bytes]
packs = pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])


def opened(data: bytes) -> io.RawIOBase:
    content = plain_content(io.BufferedReader(io.BytesIO(data)))
    assert isinstance(content, io.RawIOBase)
    return content


@packs
def test_members_behind_each_other_are_one_content(pack: Pack) -> None:
    assert opened(pack(TEXT[:1000]) + pack(b"") + pack(TEXT[1000:])).read() == TEXT


@packs
def test_seeking_leads_to_any_offset(pack: Pack) -> None:
    content = opened(pack(TEXT))
    for offset in (400_000, 7, 599_990, 0):
        assert content.seek(offset) == content.tell() == offset
        assert content.read(5) == TEXT[offset : offset + 5]
    assert content.seek(10**9) == len(TEXT), "the end"


def test_padding_behind_a_gzip_file_is_ignored() -> None:
    assert opened(gzip.compress(TEXT) + bytes(1000)).read() == TEXT


@packs
def test_everything_before_a_cut_is_returned_before_the_error(pack: Pack) -> None:
    packed = pack(TEXT)
    content, found = opened(packed[: len(packed) // 2]), []

    def read_all() -> None:
        while piece := content.read(1 << 16):
            found.append(piece)

    with pytest.raises(EOFError, match="end too early"):
        read_all()
    assert TEXT.startswith(b"".join(found))
    assert len(b"".join(found)) > len(TEXT) // 4


@packs
def test_damaged_data_are_an_error(pack: Pack) -> None:
    with pytest.raises(DamagedFile):
        opened(pack(TEXT) + b"garbage").read()


def test_plain_content_is_left_as_it_is() -> None:
    stream = io.BufferedReader(io.BytesIO(b"plain"))
    assert plain_content(stream) is stream
