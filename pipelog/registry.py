"""One registry for parsers, tables, kinds of failures, detectors and reporters, filled by decorators.

Modules are found by walking their package, so adding one edits no list. Other distributions offer theirs through
an entry point of the package's name (`pipelog.detectors`, …), which names a module to import.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType
from typing import Generic, TypeVar

from pipelog.errors import BadPlugin

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """Things of one kind by key; a key is taken once."""

    def add(self, key: str, item: T) -> None:
        """Register *item*; raises ValueError where *key* is taken."""
        if key in self:
            raise ValueError(f"{key!r} is registered twice")
        self[key] = item


@functools.cache
def load(package: ModuleType) -> None:
    """Import every module of *package*, then what other distributions offer for it; once. Raises BadPlugin, which names what to mend."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    for plugin in entry_points(group=package.__name__):
        try:
            plugin.load()
        except Exception as error:
            whose = f" of {plugin.dist.name} {plugin.dist.version}" if plugin.dist else ""
            said = f"{type(error).__name__}: {error}"
            raise BadPlugin(f"the plug-in {plugin.value}{whose} cannot be loaded ({said}): mend it or uninstall it") from error
