"""Client libraries run unmodified on tiny models with random weights. Marked ``clients``."""
