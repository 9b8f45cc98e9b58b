"""Lines that call themselves an error and that nobody knows better: loggers at level ERROR and above, `error: …` or an exception's name at the beginning.

    [2024-10-10 10:04:40,998] [ERROR] [metrics.py:41:push] push gateway not reachable
    2024-03-05 15:20:09,832 - trainer - ERROR - could not load the tokenizer
    2024-03-05 15:20:09.832 | CRITICAL | __main__:main:12 - giving up
    [NeMo E 2024-03-05 15:20:09 nemo_logging:349] no checkpoint
    E0305 15:20:09.123456  4312 server.cc:88] lost the client
    train.py: error: unrecognized arguments: --stages

The level word must stand at its place in a logger's head: after a stamp, brackets or the logger's name, before its separator. A line
that another parser of errors claims, too, is left to that one by whoever reads the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._stamps import ISO, iso_ns
from pipelog.parsing import Records, Rows, lines

_LEVEL = r"(?:ERROR|CRITICAL|FATAL)"
_BOX = r"\[[^\]'\"]*\]|\([^()'\"]+\)"
_TIMES = r"[\d/:.,T-]*\d[\d/:.,T -]*"
"""Stamps in any form: `2024-03-05 15:20:09,832`, `03/05/2024 15:20:09`, `03-05 15:20:09`, `15:20:09`."""
_NAME = r"[A-Za-z_][\w.-]*(?:[.:/-][\w<>.-]+)*"
_ALREADY = r"\] \[launch\.py:\d+:sigkill_handler\]|failed \(exitcode: |: tasks? [\d,\[\]-]+: |error: \*\*\* |: Node failure on |: Timed out waiting for job step|oom[-_]kill event|[Ee]xceeded (?:\w+ )?memory limit|; will restart worker group"
"""Ends that launchers and Slurm word as errors: rows of kind `end` have them."""


# ERROR:root:msg      ERROR: msg      [ERROR] msg      wandb: ERROR msg      (worker pid=4312) ERROR 03-05 15:20:09 engine.py:12] msg
# 03/05/2024 15:20:09 - ERROR - __main__ - msg          [03/05/24 15:20:09] ERROR    msg          2024-03-05 15:20:09 [error    ] msg
@lines(
    "level-logger",
    mark=("ERROR", "CRITICAL", "FATAL", "[error ", "[critical "),
    pattern=(
        rf"^(?:(?:(?:{_BOX}|{_TIMES})[ :|,-]*)+(?:{_NAME}(?: +\d+)?(?: ?[:|-] ?| +|\]: ?)(?:(?:{_BOX})[ :|,-]*)*)?|{_NAME} ?(?:[:|]| -) ?| {{12,}})?"
        rf"(?P<level>\[ ?{_LEVEL} ?\]|\[(?:error|critical) *\]|\[{_LEVEL}\||{_LEVEL}(?::| - | ?\| |  | [-\d\[(<]| [A-Z][a-z]| [\w.]+: | \w+[.:/]\w|\]))"
    ),
)
def logger(found: Records) -> Iterator[Rows]:
    """Give a line of a logger at level ERROR or above (stream: error, critical or fatal), with its time where it prints one with a year."""
    level = pc.utf8_lower(found.groups["level"])
    stream = pc.if_else(pc.match_substring(level, "fatal"), "fatal", pc.if_else(pc.match_substring(level, "critical"), "critical", "error"))
    begin = pc.extract_regex(found.groups["line"], rf"^\[?(?P<stamp>{ISO})").field("stamp")
    yield from _rows(found, stream, begin)


# E0305 15:20:09.123456  4312 server.cc:88] msg
# 2024-03-05 15:20:09.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory
# [NeMo E 2024-03-05 15:20:09 nemo_logging:349] msg
# (raylet) [2024-03-05 15:20:09,123 E 4312 4312] (raylet) node_manager.cc:3040: 1 Workers (tasks / actors) killed due to memory pressure (OOM)
@lines(
    "level-letter",
    mark=("[NeMo E ", ".cc:", ".go:", "torch/distributed/", ": E external/", ": E tensorflow/", "(raylet)"),
    pattern=(
        rf"^(?:(?P<letter>[EF])\d{{4}} \d\d:\d\d:\d{{2,10}}(?:\.\d+)? +\d+ [\w./-]+:\d+\] |(?P<tf>{ISO}): (?P<tensor>[EF]) \S+:\d+\] |\[NeMo (?P<nemo>E) (?P<stamp>{ISO}) "
        rf"|(?:\(\w+(?:, ip=\S+)?\) ){{0,2}}\[(?P<at>{ISO}) (?P<ray>[EF]) \d+ \d+\] )"
    ),
)
def letter(found: Records) -> Iterator[Rows]:
    """Give a line of glog, absl, TensorFlow, NeMo or Ray that marks its level with a letter."""
    word = pc.coalesce(*(found[name] for name in ("letter", "tensor", "nemo", "ray")))
    stream = pc.if_else(pc.equal(word, "F"), "fatal", "error")
    yield from _rows(found, stream, *(found[name] for name in ("stamp", "tf", "at")))


# error: could not lock config file            foo.cu(12): error: identifier "x" is undefined          ninja: fatal: …
# train.py: error: unrecognized arguments: --stages          level=error msg="…"          {"level": "error", "message": "…"}
# srun: error: Unable to create step for job 812345: Invalid account          panic: runtime error: index out of range
# RuntimeError: ProcessGroupCCL: send/recv is not supported
@lines(
    "level-word",
    mark=(
        "rror: ",
        "fatal: ",
        "nvcc fatal ",
        "panic: ",
        "level=error",
        "level=fatal",
        '"level": "error"',
        '"level":"error"',
        '"levelname": "ERROR"',
        '"severity":"ERROR"',
        '"severity": "ERROR"',
        "Exception: ",
    ),
    pattern=(
        r"^(?:(?:[Ee]rror): [^\s\d.+-]|fatal: +[^\s\d]|[Ff]atal error: \S|nvcc fatal +: |panic: \S|(?:[\w./+-]+(?:\(\d+\)|:\d+)?(?::\d+)?): (?:fatal )?(?P<tool>error|fatal)(?: [A-Z]*\d*)?: [^\s\d.+-]"
        r"|(?:time=\S+ |ts=\S+ )?(?:[a-z]+=\S+ ){0,3}level=(?P<logfmt>error|fatal)\b|\{.*\"(?:level|levelname|severity)\": ?\"(?P<json>error|ERROR)\"|(?P<exception>(?:\w+\.){0,8}(?:[A-Z]\w*Error|(?:[A-Z]\w*)?Exception)): \S)"
    ),
)
def word(found: Records) -> Iterator[Rows]:
    """Give a line of a program that calls it an error itself: compilers, command lines, Slurm's commands, structured logs.

    `bare-exception` where it begins with an exception's name: what `grep` or a ticket kept of tracebacks. In a log that has some these rows are
    left out (reading/logs.py).
    """
    fatal = pc.match_substring_regex(found.groups["line"], r"^(?:[Ff]atal|nvcc fatal|panic)|^[^\s:]+: fatal|level=fatal")
    yield from _rows(found, pc.if_else(fatal, "fatal", "error"), name=pc.if_else(pc.equal(found.groups["exception"], ""), "level", "bare-exception"))


def _rows(found: Records, stream: pa.Array, *stamps: pa.Array, name: str | pa.Array = "level") -> Iterator[Rows]:
    ns, clock = found.columns["start_ns"], found.columns["clock"]
    if stamps and ns.null_count:
        ns = pc.coalesce(ns, *(iso_ns(stamp) for stamp in stamps))
        clock = pc.if_else(pc.and_(pc.is_valid(ns), pc.is_null(clock)), "log", clock)
    keep = pc.invert(pc.match_substring_regex(found.groups["line"], _ALREADY))
    yield found.rows("error", name, stream=stream, start_ns=ns, clock=clock, text=found["line"]).filter(keep)
