"""Will hold pilots, checks, ledgers, reports and the model sweep.

Uses torch's public API only, so that a pilot runs on any device. Nothing is here yet.
"""
