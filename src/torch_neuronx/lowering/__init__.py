"""The lowering table: ATen overload -> JAX function.

Nothing here touches a device. ``program`` is plain data and imports neither torch nor jax;
``table``, ``build`` and ``rules`` import jax and therefore run in the lowering server.
"""
