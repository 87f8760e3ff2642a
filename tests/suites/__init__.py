"""PyTorch's own databases of operators, modules and optimizers, on the device, with our templates.

``op_db`` is measured by tools/opinfo.py; the others are here. Templates are instantiated for the
device by ``PrivateUse1TestBase``, as PyTorch's tests are.
"""
