"""Parsers of log lines, one kind of record a file. A new one is a new file here; nothing else changes."""
