"""Ways of watching a workload run: operators, layers, times, numbers, memory."""
