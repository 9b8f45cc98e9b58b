"""python -m pipelog."""

from pipelog.cli import main

main()
