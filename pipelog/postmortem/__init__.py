"""Who failed first, why, and what followed: derived tables over the rows of kind `error`, `end` and `process`.

kinds/      what a line means: its category, what it is to others (initiating, cascade, teardown, benign), advice
errors      every line that speaks of a failure, with its kind, rank, stage, host and time
roles       which of them began it, which followed, which were survived
hangs       who is waited for: watchdogs, timeouts, silence, stack dumps, flight recorders
deaths      one verdict an attempt
afterwards  what the log of a run that came to its end says below that
ledger      where the time of several attempts went
"""
