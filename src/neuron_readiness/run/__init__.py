"""Running a pilot: a supervisor that needs no torch, and the processes that do the work."""
