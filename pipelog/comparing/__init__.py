"""`pipelog diff`: two runs, what changed between them, and whether the steps show a difference. Reads the figures of report.json alone."""
