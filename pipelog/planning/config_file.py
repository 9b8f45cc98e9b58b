"""A ds_config.json before the job: the few values that a plan needs, each with its line. What DeepSpeed would stumble over is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelog.errors import BadOption, NoInput
from pipelog.planning.batch import AUTO, KEYS, MOST_STAGES, Sizes, number
from pipelog.reading.configs import read_config
from pipelog.reading.files import sources
from pipelog.reading.streams import Stream

_LARGEST = 8 << 20
_OBJECT = re.compile(r"(?:\s++|//[^\n]*+\n|\#[^\n]*+\n|(?>/\*.*?\*/))*+\{", re.DOTALL)
"""A JSON object, behind remarks at most."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """sizes as stated. stages: of the `pipeline` section, null for "auto". recompute: pipeline.activation_checkpoint_interval above 0.

    elastic: elasticity chooses the batch at run time. lines: key → line of the file.
    """

    name: str
    sizes: Sizes = field(default_factory=Sizes)
    stages: int | None = None
    zero_stage: int | None = None
    recompute: bool | None = None
    elastic: bool = False
    lines: dict[str, int] = field(default_factory=dict)


def read(path: str) -> ConfigFile:
    """Raises BadOption, in one line, for what is no DeepSpeed configuration or would stop DeepSpeed; NoInput where there is no file."""
    place = Path(path)
    if place.is_dir():
        raise BadOption(f"{path} is a folder: plan takes one ds_config.json; a job's folder goes behind --from")
    found, refused = sources([path])
    if not found:
        raise NoInput(f"{path}: {refused[0].skipped[0].why.removeprefix('ignored, because ') if refused else 'nothing to read'}")
    source = found[0]
    if source.bytes > _LARGEST:
        raise BadOption(f"{path}: larger than any DeepSpeed configuration")
    try:
        if not _OBJECT.match(_head(source.path)):
            raise BadOption(f"{path}: no JSON object, so no DeepSpeed configuration")
        table, given = read_config(source)
    except OSError as error:
        raise NoInput(f"{path}: {error.strerror or error}") from error
    if given.skipped:
        trouble = given.skipped[0]
        raise BadOption(f"{path}{f':{trouble.line}' if trouble.line else ''}: {trouble.why}")
    return _of(path, table.select(["name", "value", "text", "line"]).to_pylist())


def _head(path: Path) -> str:
    data = b""
    for piece in Stream(path).text():
        data += piece
        if len(data) > 1 << 16:
            break
    for mark, coding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if data.startswith(mark):
            return data[len(mark) :].decode(coding, "replace")
    return data.decode("utf-8", "replace")


def _of(path: str, rows: list[dict[str, Any]]) -> ConfigFile:
    said: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = row["name"].removeprefix("config.")
        if key in said and "." not in key:
            raise BadOption(f"{path}:{row['line']}: {key[:60]!r} is given twice (first in line {said[key]['line']}); DeepSpeed refuses that")
        said[key] = row
    for key in KEYS:
        inner = next((k for k in said if k.startswith(f"{key}.")), None)
        if inner is not None:
            raise BadOption(f"{path}:{said[inner]['line']}: {key} is an object: it has to be a whole number from 1 on, or left out")
    sizes = [_size(path, key, said.get(key)) for key in KEYS]
    return ConfigFile(
        Path(path).name,
        Sizes(*sizes),
        _whole(path, "pipeline.stages", said),
        _whole(path, "zero_optimization.stage", said, least=0),
        None if (interval := _whole(path, "pipeline.activation_checkpoint_interval", said, least=0)) is None else interval > 0,
        str(said.get("elasticity.enabled", {}).get("text")).lower() == "true",
        {key: int(row["line"]) for key, row in said.items()},
    )


def _size(path: str, key: str, row: dict[str, Any] | None) -> int | str | None:
    if row is None or row["text"] in ("null", "None"):
        return None
    if row["text"] == AUTO:
        return AUTO
    try:
        return number(key, row["text"] if row["value"] is None or row["text"].lower() in ("true", "false") else row["value"])
    except BadOption as error:
        raise BadOption(f"{path}:{row['line']}: {error}") from error


def _whole(path: str, key: str, said: dict[str, dict[str, Any]], *, least: int = 1) -> int | None:
    """A whole number, null where it is not given or "auto"."""
    row = said.get(key)
    if row is None or row["text"] in ("null", "None", AUTO):
        return None
    value = row["value"]
    if value is None or not float(value).is_integer() or not least <= value <= MOST_STAGES:
        raise BadOption(f"{path}:{row['line']}: {key} is {row['text'][:60]!r}: it has to be a whole number from {least} on")
    return int(value)
