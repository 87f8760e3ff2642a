"""Errors of lowering. Imports nothing, so that both sides of the server's pipe share them."""

from __future__ import annotations


class LoweringError(RuntimeError):
    """A rule is missing or failed. Never answered by a fallback."""


class NoRuleError(LoweringError):
    """The table has no rule for an operator."""
