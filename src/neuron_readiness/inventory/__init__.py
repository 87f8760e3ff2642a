"""Device-specific dependencies in source text, found in its syntax tree with names resolved."""
