"""What a coordinate check found: how far a few steps move each place of a model, and how that grows with the width."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.plan.chart import Panel, svg

# What goes with the root of the width has a slope of 0.5, what goes with the width 1. What is flat in the limit comes
# to 0.05 at the widths that are usual here, and attention logits to 0.2.
FLAT = 0.25
# What begins as random products, which go with 1 / sqrt(width) under muP, and is flat once the learned part is larger
# (Yang et al., arXiv 2203.03466, appendix D.2): in a few steps it may fall, and must not grow.
ATTENTION = "attention logits"


@dataclass(frozen=True)
class Place:
    """What was measured at one place of a model: by width, and then by step from 0, geometric means over the seeds.

    scale: mean magnitude. moved: mean magnitude of the difference to step 0, which is 0 there.
    """

    scale: Mapping[int, tuple[float, ...]]
    moved: Mapping[int, tuple[float, ...]]

    def slope(self, quantity: str, step: int) -> float:
        """Return d log(quantity) / d log(width) after `step` steps: 0 is flat; NaN where something is not finite."""
        found: Mapping[int, tuple[float, ...]] = getattr(self, quantity)
        return slope([(width, values[step]) for width, values in found.items()])


@dataclass(frozen=True)
class CoordinateCheck:
    """What each parametrization gave, by place: `embedding`, `block N`, `attention logits N` and `logits`.

    All of it with one learning rate, on one batch that the model is trained on too.
    """

    learning_rate: float
    optimizer: str
    base_width: int
    steps: int
    seeds: int
    places: Mapping[str, Mapping[str, Place]]

    def steepest(self, parametrization: str) -> float:
        """Return the slope furthest from 0 of what the steps have moved; of attention logits only growth counts."""
        found = {name: place.slope("moved", self.steps) for name, place in self.places[parametrization].items()}
        counted = [0.0 if name.startswith(ATTENTION) and one < 0 else one for name, one in found.items()]
        return max(counted, key=lambda one: math.inf if math.isnan(one) else abs(one))

    def is_flat(self, parametrization: str) -> bool:
        """Whether what the steps have moved is of one size at all widths, to within FLAT, everywhere."""
        return abs(self.steepest(parametrization)) <= FLAT

    def answer(self) -> dict[str, Any]:
        """Return what `plan --coordinate-check --json` prints."""
        return {
            "learning_rate": self.learning_rate,
            "optimizer": self.optimizer,
            "base_width": self.base_width,
            "steps": self.steps,
            "seeds": self.seeds,
            "flat_below": FLAT,
            "parametrizations": {
                name: {"flat": self.is_flat(name), "steepest": self.steepest(name), "places": self._places(places)}
                for name, places in self.places.items()
            },
        }

    def _places(self, places: Mapping[str, Place]) -> dict[str, Any]:
        return {
            name: {
                "scale": {str(width): list(values) for width, values in place.scale.items()},
                "moved": {str(width): list(values) for width, values in place.moved.items()},
                "slope_of_scale": [place.slope("scale", step) for step in range(self.steps + 1)],
                "slope_of_moved": [place.slope("moved", step) for step in range(1, self.steps + 1)],
            }
            for name, place in places.items()
        }

    def text(self) -> str:
        """Return tables for a person: by place what has moved and how large it is at each width, and slopes by step."""
        tables = "".join(f"{line}\n" for name in self.places for line in self._table(name))
        return (
            f"{tables}moved: mean |x - x at step 0|, scale: mean |x|, both after {self.steps} steps; slope: of its log "
            "over log(width). The\nverdict is on what has moved: flat is at most "
            f"{FLAT:g} either way, and attention logits may fall.\n"
            f"{self.optimizer} at a rate of {self.learning_rate:g}, base width {self.base_width}, {self.seeds} seeds.\n"
        )

    def _table(self, parametrization: str) -> Iterator[str]:
        places = self.places[parametrization]
        widths = list(next(iter(places.values())).moved)
        verdict = "flat" if self.is_flat(parametrization) else "not flat"
        steepest = self.steepest(parametrization)
        yield f"{parametrization}: {verdict}, steepest slope {steepest:.2f} after {self.steps} steps"
        heads = [f"{f'width {width}':>11}" for width in widths]
        heads += [f"{f'slope {step}':>8}" for step in range(1, self.steps + 1)]
        for quantity in ("moved", "scale"):
            yield f"  {f'{quantity}, mean magnitude':<22}" + "".join(heads)
            for name, place in places.items():
                values: Mapping[int, tuple[float, ...]] = getattr(place, quantity)
                cells = [f"{values[width][-1]:>11.4g}" for width in widths]
                cells += [f"{place.slope(quantity, step):>8.2f}" for step in range(1, self.steps + 1)]
                yield f"  {name:<22}" + "".join(cells)
        yield ""

    def picture(self) -> str:
        """Return an SVG picture: what has moved and the scale after the last step, by width and parametrization."""
        return svg(
            [
                Panel(
                    title=f"{parametrization}, after {self.steps} steps",
                    x_label="width",
                    y_label=f"mean |{what}|",
                    lines={
                        name: [(width, values[-1]) for width, values in getattr(place, quantity).items()]
                        for name, place in places.items()
                    },
                )
                for quantity, what in (("moved", "x - x at step 0"), ("scale", "x"))
                for parametrization, places in self.places.items()
            ]
        )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least squares line through the logarithms; NaN where one value has none."""
    if not all(0 < y < math.inf for _, y in points):
        return math.nan
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle = sum(x for x, _ in logs) / len(logs)
    return sum((x - middle) * y for x, y in logs) / sum((x - middle) ** 2 for x, _ in logs)
