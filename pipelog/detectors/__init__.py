"""Rules, one a file: pl<id>_<name>.py, its page in the module docstring. A new one is a new file here; nothing else changes."""
