"""Small configurations as text, for the tests of this room."""

from functools import cache

from pretrain.config import RunConfig, parse
from pretrain.errors import ConfigError

TEXT = """
run: {dir: runs/x}
training: {max_steps: 20}
data:
  train: {corpus: {source: text, span: [0.0, 0.9]}}
  validation: {corpus: {source: text, span: [0.9, 1.0]}}
"""
IQ = """
run: {dir: runs/x}
training: {max_steps: 20}
task: {name: iq}
data:
  sequence_length: 64
  train: {signals: {source: synthetic-iq}, air: {source: iq, path: air.cu8}}
"""


@cache
def config(*overrides: str, text: str = TEXT) -> RunConfig:
    """The small configuration with overrides."""
    return parse(text, "x.yaml", overrides)


def refusal(*overrides: str, text: str = TEXT) -> list[str]:
    """The lines of the error that it is, or none."""
    try:
        config(*overrides, text=text)
    except ConfigError as error:
        return str(error).splitlines()
    return []
