"""Outputs, one a file: render(report) → text, and the suffix of its file. They draw what the report holds and compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelog.registry import Registry
from pipelog.report import Report


@dataclass(frozen=True, slots=True)
class Reporter:
    """An output format: its name on the command line, the suffix of its files, its function."""

    name: str
    suffix: str
    render: Callable[[Report], str]


REPORTERS: Registry[Reporter] = Registry()


def reporter(name: str, *, suffix: str) -> Callable[[Callable[[Report], str]], Callable[[Report], str]]:
    """Register a function as the output format *name*."""

    def add(function: Callable[[Report], str]) -> Callable[[Report], str]:
        REPORTERS.add(name, Reporter(name, suffix, function))
        return function

    return add
