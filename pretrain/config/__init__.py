"""What a run is to be: one YAML file and its overrides, read strictly, checked, resolved and frozen."""

from pretrain.config.canonical import leaves, to_yaml, tree_of, value_text
from pretrain.config.check import warnings
from pretrain.config.identity import (
    ABSENT,
    MIGRATABLE,
    RESUMABLE,
    Change,
    Difference,
    difference,
    identity_sha256,
    is_migratable,
    is_resumable,
    resumed,
)
from pretrain.config.load import load, parse
from pretrain.config.settings import InitSettings, RunConfig, RunSettings, TrainingSettings, ValidationSettings

__all__ = [
    "ABSENT",
    "MIGRATABLE",
    "RESUMABLE",
    "Change",
    "Difference",
    "InitSettings",
    "RunConfig",
    "RunSettings",
    "TrainingSettings",
    "ValidationSettings",
    "difference",
    "identity_sha256",
    "is_migratable",
    "is_resumable",
    "leaves",
    "load",
    "parse",
    "resumed",
    "to_yaml",
    "tree_of",
    "value_text",
    "warnings",
]
