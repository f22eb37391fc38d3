"""Learning rates that follow the width of a model under muP, and which optimizers they are known for."""

import dataclasses
from typing import Any

from pretrain.optimizers.groups import HIDDEN_ROLES

_EXPONENT = "width_exponent"  # of a settings class: by which power of the width the rate of a hidden matrix falls


def for_width(settings: Any, ratio: float) -> Any:
    """Return the settings of an optimizer for a model that is `ratio` times as wide as its base under muP.

    With m = ratio, the matrices of attention and feed-forward layers take m^-e of the learning rate, e being the
    optimizer's `width_exponent`, and a router, which AdamW or an optimizer like it updates, 1 / m: Yang et al., arXiv
    2203.03466, tables 8 and 3. The decay of these parts is multiplied by as much as their rate is divided by, so that
    rate times decay, the share that a step takes off, does not depend on the width: Wang and Aitchison, arXiv
    2405.13698; the `mup` package does the same. With a ratio of 1 nothing changes. `settings` must be those of an
    optimizer that `width_contradictions` finds nothing against.
    """
    if ratio == 1:
        return settings
    exponents = {role: getattr(settings, _EXPONENT) for role in HIDDEN_ROLES} | {"router": 1.0}
    groups = {}
    for role, exponent in exponents.items():
        own, share = getattr(settings.groups, role), ratio**-exponent
        decay = settings.weight_decay if own.weight_decay is None else own.weight_decay
        groups[role] = dataclasses.replace(own, lr_multiplier=own.lr_multiplier * share, weight_decay=decay / share)
    return dataclasses.replace(settings, groups=dataclasses.replace(settings.groups, **groups))


def width_contradictions(name: str, settings: Any) -> list[str]:
    """Return why muP cannot be combined with an optimizer, each line beginning with the key to change.

    SGD has other exponents in every role; the step of Adafactor is relative to the size of the weight, which falls with
    the width by itself; GaLore's and APOLLO's are of low rank, and their exponents are not known.
    """
    if not hasattr(settings, _EXPONENT):
        return [
            f"model.parametrization: how the learning rates of {name} follow the width is not known here; with mup "
            "take adamw, lion or muon as optimizer.optimizer_class, or set model.parametrization=standard"
        ]
    if getattr(settings, "use_galore", False):
        return [
            "optimizer.use_galore: how the learning rates of GaLore follow the width is not known here; with "
            "model.parametrization=mup set it to false"
        ]
    return []
