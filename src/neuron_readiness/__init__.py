"""Evidence for a migration decision: can this workload move to that device, and at what cost?

The command is ``neuron-readiness``; `docs/readiness.md` tells how a pilot is written and read.
Importing this package imports neither torch nor a device.
"""

from __future__ import annotations

__version__ = "0.1.0"
