"""Pretraining runs that a person can leave alone and can prove afterwards."""

__version__ = "0.1.0"
