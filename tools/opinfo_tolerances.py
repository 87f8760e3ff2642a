"""How close a result on the device must be to CPU's, per dtype, and why it is not closer.

``BASE`` holds (rtol, atol) of a forward result. XLA and PyTorch sum in different orders and use
different polynomials for transcendental functions: a few units in the last place of float32, more
after cancellation. Reduced floats round once on both sides, and PyTorch accumulates some reductions
in several roundings: for them a result that is near CPU's float32 result, rounded once, passes too.
float64 and complex128 are computed in float32 on the default target (decision D6), so they have
float32's tolerances; subnormals count as zero. Integers and bool must be equal.

Where CPU's float32 result is itself far from its float64 result (cancellation), the device may be
``AS_GOOD`` times as far from it; likewise derivatives in a reduced float, measured by float32's.

``LOOSE`` widens an operator's, each row with its reason.
"""

from __future__ import annotations

import torch

BASE: dict[torch.dtype, tuple[float, float]] = {
    torch.float32: (2e-5, 2e-5),
    torch.float64: (2e-5, 2e-5),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (2e-5, 2e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
}

# Derivatives chain several roundings: each step's error enters the next as its input.
DERIVATIVE = {"backward": 5.0, "forward_ad": 5.0, "second": 20.0}

AS_GOOD = 3.0

LOOSE: dict[str, tuple[float, str]] = {  # OpInfo name: (factor, reason)
    "logdet": (50, "product of pivots of an elimination in another order"),
    "linalg.det": (50, "product of pivots of an elimination in another order"),
    "det": (50, "product of pivots of an elimination in another order"),
    "linalg.slogdet": (50, "product of pivots of an elimination in another order"),
    "linalg.inv": (50, "error grows with the condition number of a random matrix"),
    "linalg.inv_ex": (50, "error grows with the condition number of a random matrix"),
    "inverse": (50, "error grows with the condition number of a random matrix"),
    "linalg.solve": (50, "error grows with the condition number of a random matrix"),
    "linalg.solve_ex": (50, "error grows with the condition number of a random matrix"),
    "linalg.pinv": (100, "error grows with the square of the condition number"),
    "pinverse": (100, "error grows with the square of the condition number"),
    "linalg.lstsq": (100, "error grows with the square of the condition number"),
    "linalg.matrix_power": (50, "repeated products, inverted for negative powers"),
    "matrix_exp": (50, "repeated squaring"),
    "linalg.matrix_exp": (50, "repeated squaring"),
    "svd": (20, "iterative"),
    "linalg.svd": (20, "iterative"),
    "linalg.eigh": (20, "iterative"),
    "linalg.eig": (50, "iterative"),
    "linalg.eigvals": (50, "iterative"),
    "cholesky_inverse": (50, "error grows with the condition number of a random matrix"),
    "cholesky_solve": (50, "error grows with the condition number of a random matrix"),
    "lu_solve": (50, "error grows with the condition number of a random matrix"),
    "linalg.lu_solve": (50, "error grows with the condition number of a random matrix"),
    "cumprod": (5, "products associated as a tree"),
    "cdist": (20, "square root of a cancelling sum near zero"),
    "special.zeta": (5, "a sum of powers in another order"),
    "polygamma": (5, "a sum of powers in another order"),
    "special.polygamma": (5, "a sum of powers in another order"),
}


def tolerance(op: str, dtype: torch.dtype, kind: str) -> tuple[float, float]:
    """(rtol, atol) of a result of ``dtype`` of OpInfo entry ``op`` in a case of ``kind``."""
    if dtype not in BASE:
        return 0.0, 0.0
    loose = LOOSE.get(op) or LOOSE.get(op.split(".polygamma")[0], (1.0, ""))
    factor = DERIVATIVE.get(kind, 1.0) * loose[0]
    rtol, atol = BASE[dtype]
    return rtol * factor, atol * factor
