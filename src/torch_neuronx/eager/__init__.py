"""Eager operators: registration, planning of new calls, tracking of who ran where."""
