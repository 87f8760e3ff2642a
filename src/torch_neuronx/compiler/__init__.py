"""From StableHLO to an executable: options, keys, caches, single flight.

Imports neither torch nor jax. ``compile.Compiler`` is the door.
"""
