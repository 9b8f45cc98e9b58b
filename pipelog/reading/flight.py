"""Flight-recorder dumps (`nccl_trace_rank_3`, `_dump_3`): the last collectives of a rank, as a pickle.

A pickle can run code when it is loaded, so it is read with an unpickler that refuses every global: dicts, lists, strings and numbers
come through, anything else ends the reading.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from typing import Any

import pyarrow as pa

from pipelog.events import WORD, Input, Skipped, conform, constant
from pipelog.reading.files import Source, rank_of_name
from pipelog.reading.streams import Stream

_LARGEST = 512 << 20
_LAST_NUMBER = re.compile(r"(\d+)(?:\.\w+)?$")


class _Plain(pickle.Unpickler):
    """Refuses every global, and with it all code."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"holds {module_name}.{global_name}, which a flight-recorder dump never does")


def is_flight(head: bytes) -> bool:
    """Whether a file may be a dump: a pickle of protocol 2 or later that speaks of process groups, or the JSON form."""
    if head[:1] == b"\x80" and len(head) > 2 and 2 <= head[1] <= 5:
        return b"pg_config" in head or b"pg_status" in head or b"entries" in head
    return head.lstrip()[:1] == b"{" and b'"pg_config"' in head[:4096] and b'"entries"' in head


def read_flight(source: Source) -> tuple[pa.Table, Input]:
    """Facts (groups, world size) and one `flight` row an entry: name, group, value (sequence number), start_ns, text (state)."""
    given = Input(source.shown, "flight-recorder", source.bytes)
    document, why = _load(source)
    if document is None:
        given.skipped.append(Skipped(None, why))
        return conform(pa.table({"line": pa.array([], pa.int64())})), given
    rank = rank_of_name(source.shown)
    if rank is None and (match := _LAST_NUMBER.search(source.shown)):
        rank = int(match.group(1))
    stated = document.get("pg_config")
    groups: dict[str, Any] = stated if isinstance(stated, dict) else {}
    entries = [e for e in document.get("entries") or [] if isinstance(e, dict)]
    rows = _facts(groups) + [_entry(i, e) for i, e in enumerate(entries)]
    n = len(rows)
    names = ("kind", "name", "group", "value", "start_ns", "text", "line", "step")
    table = pa.table({name: pa.array([row.get(name) for row in rows], _TYPES.get(name)) for name in names})
    table = table.append_column("rank", pa.repeat(pa.scalar(rank, pa.int32()), n)).append_column("file", constant(source.shown, WORD, n))
    table = conform(table)
    given.events = n
    given.notes = {"rank": rank, "status": document.get("pg_status"), "groups": groups, "entries": len(entries)}
    return table, given


_TYPES = {
    "kind": pa.string(),
    "name": pa.string(),
    "group": pa.string(),
    "value": pa.float64(),
    "start_ns": pa.int64(),
    "text": pa.large_string(),
    "line": pa.int64(),
    "step": pa.int32(),
}


def _load(source: Source) -> tuple[dict[str, Any] | None, str]:
    if source.bytes > _LARGEST:
        return None, f"ignored, because a dump of more than {_LARGEST >> 20} MB is not read"
    data = b"".join(Stream(source.path).pieces())
    try:
        document = json.loads(data) if data.lstrip()[:1] == b"{" else _Plain(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001  (whatever a hostile pickle raises)
        return None, f"ignored, because it is no flight-recorder dump: {error}"
    return (document, "") if isinstance(document, dict) else (None, "ignored, because it is a pickle of something else")


def _facts(groups: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for group in groups.values():
        if not isinstance(group, dict):
            continue
        ranks = _ranks(group.get("ranks"))
        name, what = str(group.get("name")), str(group.get("desc"))
        rows.append({"kind": "fact", "name": f"group.{name}", "value": float(len(ranks)), "text": f"{what}:{','.join(map(str, ranks))}"})
        if what == "default_pg" and ranks:
            rows.append({"kind": "fact", "name": "topology.world_size", "value": float(len(ranks)), "text": str(len(ranks))})
    return rows


def _ranks(value: Any) -> list[int]:
    if isinstance(value, str):
        return [int(n) for n in re.findall(r"\d+", value)]
    return [int(n) for n in value if isinstance(n, int)] if isinstance(value, list) else []


def _entry(index: int, entry: dict[str, Any]) -> dict[str, Any]:
    group = entry.get("process_group")
    created, number = entry.get("time_created_ns"), entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")
    return {
        "kind": "flight",
        "name": str(entry.get("profiling_name")),
        "group": str(group[0]) if isinstance(group, list | tuple) and group else None,
        "value": float(number) if isinstance(number, int) else None,
        "start_ns": created if isinstance(created, int) and 0 < created < 2**63 else None,
        "text": str(entry.get("state")),
        "line": index,
    }
