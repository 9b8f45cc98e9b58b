"""Bytes of a file, decompressed, whatever happened to its end.

A truncated gzip keeps everything up to its last complete byte: a `decompressobj` loop loses nothing, where a file object would
lose its last read, and it reads concatenated members too.
"""

from __future__ import annotations

import bz2
import codecs
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from pipelog.events import Skipped
from pipelog.reading import json_lines

GZIP, ZSTD, BZIP2, XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zX"
_READ = 1 << 20
_READ_PACKED = 1 << 16
"""Of gzip and zstd less at a time: it grows fifteen- to thirtyfold, and what fits the processor's cache is worked on faster."""
ANSI = r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()*+][0-9A-Za-z]|[=>78cDEHMNOZ])"
"""Colours, cursor moves, character sets and window titles."""
_ESCAPES = re.compile(ANSI.encode())
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(slots=True)
class Stream:
    """Decompressed bytes of one file, piece by piece. After the last piece, `trouble` says what was lost at the end.

    wrapped: whether its lines were JSON objects, known once the first piece of text was read.
    """

    path: Path
    trouble: list[Skipped] = field(default_factory=list)
    wrapped: bool = False

    def pieces(self) -> Iterator[bytes]:
        """The content as it stands in the file, decompressed."""
        with self.path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic.startswith(GZIP):
                yield from self._gunzip(file.read)
            elif magic == ZSTD:
                yield from self._unzstd()
            elif magic.startswith(BZIP2):
                yield from self._unpack(file.read, bz2.BZ2Decompressor, "bzip2")
            elif magic == XZ:
                yield from self._unpack(file.read, lzma.LZMADecompressor, "xz")
            else:
                while piece := file.read(_READ):
                    yield piece

    def text(self, *, unwrap: bool = True, flat: bool = False, note: json_lines.Note | None = None) -> Iterator[bytes]:
        """The content as UTF-8 where it is UTF-16 (a log redirected in PowerShell), else unchanged; unwrap: without the JSON around the lines of a log.

        flat, note: see `json_lines.unwrapped`.
        """
        pieces = self.pieces()
        first = next(pieces, b"")
        marked = _UTF16.get(first[:2])
        coding = marked or _unmarked(first[:4096])
        if coding is None:
            first = first.removeprefix(codecs.BOM_UTF8)
            written = json_lines.form(first) if unwrap else None
            self.wrapped = written is not None
            whole = itertools.chain([first], pieces)
            yield from whole if written is None else json_lines.unwrapped(whole, written, flat=flat, note=note)
            return
        decoder = codecs.getincrementaldecoder(coding)("replace")
        yield decoder.decode(first[2:] if marked else first).encode()
        for piece in pieces:
            yield decoder.decode(piece).encode()

    def _gunzip(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        inflate, data = isal_zlib.decompressobj(zlib.MAX_WBITS | 16), read(_READ_PACKED)
        try:
            while data:
                if out := inflate.decompress(data):
                    yield out
                if not inflate.eof:
                    data = read(_READ_PACKED)
                    continue
                data = (inflate.unused_data or read(_READ_PACKED)).lstrip(b"\0")  # members may follow one another, padded with zeros
                if data[:2] not in (GZIP, GZIP[:1], b""):
                    self.trouble.append(Skipped(None, "bytes after the end of the gzip data"))
                    return
                if data:
                    inflate = isal_zlib.decompressobj(zlib.MAX_WBITS | 16)
            if not inflate.eof:
                self.trouble.append(Skipped(None, "the gzip data end in the middle: everything before was read"))
        except (isal_zlib.IsalError, zlib.error) as error:  # type: ignore[misc]  # the stubs do not know it
            self.trouble.append(Skipped(None, f"the gzip data are damaged ({error}): everything before was read"))

    def _unpack(self, read: Callable[[int], bytes], decompressor: type[bz2.BZ2Decompressor | lzma.LZMADecompressor], name: str) -> Iterator[bytes]:
        unpack = None
        try:
            while data := read(_READ_PACKED):
                while data:
                    unpack = unpack or decompressor()
                    if out := unpack.decompress(data):
                        yield out
                    data, unpack = (unpack.unused_data, None) if unpack.eof else (b"", unpack)
            if unpack is not None:
                self.trouble.append(Skipped(None, f"the {name} data end in the middle: everything before was read"))
        except (OSError, EOFError, lzma.LZMAError) as error:
            self.trouble.append(Skipped(None, f"the {name} data are damaged ({error}): everything before was read"))

    def _unzstd(self) -> Iterator[bytes]:
        with pa.CompressedInputStream(pa.OSFile(str(self.path)), "zstd") as stream:
            while True:
                try:
                    piece = stream.read(_READ_PACKED)  # small reads: the last one is lost where the file is cut
                except OSError as error:
                    self.trouble.append(Skipped(None, f"the zstd data end in the middle or are damaged ({error})"))
                    return
                if not piece:
                    return
                yield piece


def _unmarked(head: bytes) -> str | None:
    """UTF-16 of mostly Latin text without its mark: every second byte is NUL, and nearly no other."""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if len(head) < 16 or max(even, odd) < 0.45 * len(head) or min(even, odd) > 0.005 * len(head):
        return None
    return "utf-16-be" if even > odd else "utf-16-le"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a log. first: number of its first line. newlines: where they are. last: nothing comes after it.

    Only a line longer than the limit is cut; its pieces are chunks with the same `first`.
    """

    data: bytes
    first: int
    newlines: np.ndarray
    last: bool


def chunks(pieces: Iterator[bytes], size: int = 24 << 20, limit: int = 64 << 20) -> Iterator[Chunk]:
    """Cut *pieces* into chunks of whole lines of about *size* bytes; a line above *limit* bytes is cut."""
    held: list[bytes] = []
    have, number = 0, 1
    for piece in pieces:
        have += len(piece)
        end = piece.rfind(b"\n") + 1 if have >= size else 0
        if not end and have < limit:  # not enough yet, or a line of many MB: wait for its end
            held.append(piece)
            continue
        if end:  # so that only the pieces are copied, once
            data, rest = b"".join([*held, piece[:end]]), piece[end:]
        else:
            data = b"".join([*held, piece])
            end = data.rfind(b"\n") + 1 or len(data)
            data, rest = data[:end], data[end:]
        data = _plain(data)
        newlines = _newlines(data)
        yield Chunk(data, number, newlines, last=False)
        number += len(newlines)
        held, have = [rest], len(rest)
    data = _plain(b"".join(held))
    yield Chunk(data, number, _newlines(data), last=True)


def _plain(data: bytes) -> bytes:
    """*data* without colours and other escapes: they may stand inside a mark."""
    return _ESCAPES.sub(b"", data) if b"\x1b" in data else data


def _newlines(data: bytes) -> np.ndarray:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
