"""Tests of torch.neuron."""
