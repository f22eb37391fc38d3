"""What is read off a model and its data while it trains, from (name, module) pairs and plain numbers."""

from dataclasses import dataclass, field

from pretrain.registry import limited


@dataclass(frozen=True)
class Cadence:
    """How often a monitor looks.

    every_n_steps: completed steps between two looks; 0 = never, which costs nothing.
    """

    every_n_steps: int = limited(0, at_least=0)


@dataclass(frozen=True)
class MonitorSettings:
    """What is watched beside loss and norms; each writes a row of the metric stream, and raises alarms of its own.

    blocks: gradient, parameter and update norm of every residual block; usually every 32 steps.
    activations: root mean square and largest magnitude of what every block writes; usually every 20.
    attention: entropy and largest logit of every attention layer, of one sequence; usually every 100.
    experts: the load of every expert of each router, and how even the loads are; usually every 20.
    mixture: the share of every training domain in what was trained on since the last look; usually every 100.
    regression: the loss of every validation domain against its own best; usually 1, every validation.
    """

    blocks: Cadence = field(default_factory=Cadence)
    activations: Cadence = field(default_factory=Cadence)
    attention: Cadence = field(default_factory=Cadence)
    experts: Cadence = field(default_factory=Cadence)
    mixture: Cadence = field(default_factory=Cadence)
    regression: Cadence = field(default_factory=Cadence)


# What the settings call usual: the cost of all monitors is measured at this cadence, and their alarms are tuned to it.
USUAL = MonitorSettings(
    blocks=Cadence(32),
    activations=Cadence(20),
    attention=Cadence(100),
    experts=Cadence(20),
    mixture=Cadence(100),
    regression=Cadence(1),
)
