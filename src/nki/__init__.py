"""Will hold the kernel language: ``nki.jit``, ``nki.language``, ``nki.isa``, simulator, cost model.

May import numpy and ml_dtypes; never torch, jax or the runtime. Nothing is here yet.
"""
