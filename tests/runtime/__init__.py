"""Tests of the runtime through Python."""
