"""Blocks: the lines of one writer, each once, whatever stands between and wherever the chunks end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelog.parsing import Block, BlockParser, LineParser, Records, Row, Rows
from pipelog.reading import heads, logs, marks
from pipelog.reading.blocks import Ahead, _Lines
from pipelog.reading.files import Source
from pipelog.reading.streams import Chunk, chunks

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RANKED = heads.prefix(b"")
TEXTS = st.lists(st.tuples(st.sampled_from(["[rank0]: ", "[rank1]: ", ""]), st.sampled_from(["a", "begin", "", "  b"])), max_size=30)


def chunk_of(data: bytes, first: int = 1) -> Chunk:
    return Chunk(data, first, np.flatnonzero(np.frombuffer(data, np.uint8) == 10), last=False)


@QUIET
@given(TEXTS, st.integers(1, 60), st.lists(st.tuples(st.integers(1, 31), st.integers(0, 40)), max_size=8))
def test_each_writer_gets_its_lines_from_wherever_it_asks(texts: list[tuple[str, str]], size: int, asked: list[tuple[int, int]]) -> None:
    """Also where several blocks share what was read ahead, and ask again for what was given before."""
    data = "".join(f"{prefix}{text}\n" for prefix, text in texts).encode()
    ahead = Ahead(chunks(iter([data[i : i + 7] for i in range(0, len(data), 7)]), size=size))
    chunk = next(iter(ahead))
    own = [("[rank0]: ", ("0",)), ("[rank1]: ", ("1",)), ("", (None,))]
    lines = _Lines(chunk, ahead, RANKED)
    for after, most in sorted((a, m) for a, m in asked if a <= max(1, len(chunk.newlines))):
        for prefix, who in own:
            expected = [(n, t) for n, (p, t) in enumerate(texts, 1) if p == prefix and after < n <= after + most]
            assert list(lines.of(who, after, most)) == expected


def read(monkeypatch: pytest.MonkeyPatch, data: bytes, *, whole: bool, size: int = 1 << 20, name: str = "any.log") -> list[tuple[Any, ...]]:
    """What a parser of blocks got, from `begin` to `end`: (rank, line of each, what stood before the mark)."""

    def parse(found: Block) -> Iterator[Row]:
        got = []
        for number, text in found.lines():
            got.append(number)
            if text.startswith("end"):
                break
        yield {"kind": "block", "name": found.before, "text": str(got), "rank": found.rank}

    table = marks._marks((BlockParser("test", ("begin",), "", 1000, whole, parse),), ())
    with monkeypatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(marks, "marks", lambda: table)
        patch.setattr(logs, "chunks", lambda pieces: chunks(pieces, size=size))
        path = Path(folder) / name
        path.write_bytes(data)
        rows = logs.read_log(Source(path, name, len(data), 0))[0].to_pylist()
    return sorted((row["line"], row["rank"], row["text"], row["name"] or "") for row in rows)


TEXT = b"begin\nx\nbegin begin\n[rank1]: begin\n[rank2]: x begin\ny\n[rank1]: z\n[rank2]: end\nbegin\nend\n[rank1]: end\nbegin\n"


@pytest.mark.parametrize("size", [1, 9, 30, 1000])
def test_what_a_block_has_read_begins_no_other(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    assert read(monkeypatch, TEXT, whole=True, size=size) == [
        (1, None, "[1, 2, 3, 6, 9, 10]", ""),
        (4, 1, "[4, 7, 11]", ""),
        (5, 2, "[5, 8]", "x "),
        (12, None, "[12]", ""),
    ]


def test_other_blocks_begin_at_every_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row[0] for row in read(monkeypatch, TEXT, whole=False)] == [1, 3, 3, 4, 5, 9, 12]


def test_the_rank_of_the_file_is_the_writer_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, b"begin\nend\n", whole=True, name="rank7.log") == [(1, 7, "[1, 2]", "")]


def lines_of(monkeypatch: pytest.MonkeyPatch, data: bytes, pattern: str, *, once: bool = False) -> list[tuple[Any, ...]]:
    """(line, rank, text) of the rows of a parser of whole lines with the mark `bad`."""

    def parse(found: Records) -> Iterator[Rows]:
        yield found.rows("error", "bad", text=found["line"])

    table = marks._marks((), (LineParser("test", ("bad",), pattern, once, parse),))
    with monkeypatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(marks, "marks", lambda: table)
        path = Path(folder) / "any.log"
        path.write_bytes(data)
        rows = logs.read_log(Source(path, "any.log", len(data), 0))[0].to_pylist()
    return [(row["line"], row["rank"], row["text"]) for row in rows if row["name"] == "bad"]


def test_lines_come_whole_without_their_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"[rank3]: it is bad\n\x1b[31mbad\x1b[0m\n5%\rso bad\r\nnot\nbad luck\n[rank4]: worse: bad\n"
    assert lines_of(monkeypatch, data, r"bad$") == [(1, 3, "it is bad"), (2, None, "bad"), (3, None, "so bad"), (6, 4, "worse: bad")]


def test_equal_lines_once_where_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"[rank3]: bad 1\n[rank4]: bad 1\nbad 2\nbad 1\n"
    assert lines_of(monkeypatch, data, r"bad", once=True) == [(1, 3, "bad 1"), (3, None, "bad 2")]
