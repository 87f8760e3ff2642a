"""Tests of eager operators on the device."""
