"""Cases that other backends got wrong, from public reports, in eager mode.

Each test runs one case on the CPU and on the device and compares values, dtypes and shapes. The
cases are small: most silent faults need only a strided operand, a repeated index, an unusual dtype,
or a size of 0, 1, an odd number, or just past a power of two.

Some cases have their place elsewhere: DLPack (``tests/neuron/test_dlpack.py``), GradScaler
(``test_autocast.py``), copies in all directions (``test_api.py``), resuming in another process and
worker processes (``test_threads.py``), compiled cases (``tests/dynamo``).
"""
