"""Times of lines that are no logger's of ours: of the kernel, of syslog and the journal, of other loggers. What has no year gets 1970."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsing import Records

ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
"""`2024-03-05T15:20:08.123456`, `2024-03-05 15:20:08,123`, `2024/03/05 15:20:08`."""
SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
"""`Mar  5 15:20:08`."""
CTIME = rf"[A-Z][a-z]{{2}} {SYSLOG} \d{{4}}"
"""`Tue Mar  5 15:20:08 2024`, as `dmesg -T` and `date` print it."""

YEARLESS = "log-yearless"
"""The clock of times whose year is not printed: they are given the year 1970."""


def iso_ns(stamps: pa.Array) -> pa.Array:
    """Nanoseconds since the epoch of ISO-like stamps, taken as UTC; null where it is no time."""
    text = pc.replace_substring_regex(stamps, r"^(\d{4})[-/](\d\d)[-/](\d\d)[T ]", r"\1-\2-\3T")
    seconds = pc.strptime(pc.utf8_slice_codeunits(text, 0, 19), format="%Y-%m-%dT%H:%M:%S", unit="s", error_is_null=True)
    digits = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.utf8_slice_codeunits(text, 20), 9, "0"), 0, 9)
    fraction = pc.cast(pc.if_else(pc.match_substring_regex(digits, r"^\d{9}$"), digits, "0"), pa.int64())
    return pc.add(pc.multiply(pc.cast(seconds, pa.int64()), 1_000_000_000), fraction)


def ctime_ns(stamps: pa.Array) -> pa.Array:
    """Nanoseconds since the epoch of `Tue Mar  5 15:20:08 2024`, taken as UTC."""
    return _ns(pc.utf8_slice_codeunits(stamps, 4), "%b %d %H:%M:%S %Y")


def rfc_ns(stamps: pa.Array) -> pa.Array:
    """Nanoseconds since the epoch of `Tue, 05 Mar 2024 15:20:09 +0100`, the local time taken as UTC."""
    return _ns(pc.utf8_slice_codeunits(stamps, 5, 25), "%d %b %Y %H:%M:%S")


def syslog_ns(stamps: pa.Array) -> pa.Array:
    """Nanoseconds since the epoch of `Mar  5 15:20:08` in the year 1970."""
    return _ns(pc.binary_join_element_wise(pa.scalar("1970"), stamps, " "), "%Y %b %d %H:%M:%S")


def _ns(text: pa.Array, form: str) -> pa.Array:
    return pc.multiply(pc.cast(pc.strptime(text, format=form, unit="s", error_is_null=True), pa.int64()), 1_000_000_000)


def when(found: Records, *, iso: str = "", ctime: str = "", syslog: str = "") -> dict[str, pa.Array]:
    """Columns start_ns and clock from the groups of these names, first that is a time; else what the engine knows of the line."""
    have: dict[str, Any] = {"start_ns": found.columns["start_ns"], "clock": found.columns["clock"]}
    for group, read, clock in ((syslog, syslog_ns, YEARLESS), (ctime, ctime_ns, "log"), (iso, iso_ns, "log")):
        if group:
            ns = read(found[group])
            have = {"start_ns": pc.coalesce(ns, have["start_ns"]), "clock": pc.if_else(pc.is_valid(ns), pa.scalar(clock), have["clock"])}
    return have
