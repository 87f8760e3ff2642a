"""The model sweep: many architectures, each in a reduced configuration with random weights."""
