"""Front ends beside our own rules: a part of a program is lowered to StableHLO by somebody else.

``lower`` takes a program whose nodes ``foreign.NAME`` hold functions (``Subgraph``), has them
lowered by Torch-MLIR in a child process, and hands the program with their modules to our own
lowering.
"""

from torch_neuronx.frontend.client import lower

__all__ = ["lower"]
