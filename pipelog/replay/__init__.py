"""Replay: the dependency graph of a pipeline schedule run on durations, measured or assumed. See docs/replay.md."""
