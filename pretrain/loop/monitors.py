"""What the monitors see of a step: their rows of the metric stream, and their alarms."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack

import torch

from pretrain.batch import StepBatch
from pretrain.evidence import rows
from pretrain.loop.incidents import record_alarms
from pretrain.loop.parts import LoopParts, show
from pretrain.models import attentions, blocks, routers
from pretrain.monitors import Cadence, MonitorSettings
from pretrain.monitors.activations import Activations
from pretrain.monitors.attention import Attention
from pretrain.monitors.blocks import Blocks
from pretrain.monitors.experts import Experts
from pretrain.monitors.mixture import Mixture
from pretrain.policy.alarms import Observation, update_alarms
from pretrain.policy.cadence import is_due
from pretrain.policy.experts import judge_experts, load_entropy
from pretrain.policy.layers import judge_activations, judge_attention, judge_blocks
from pretrain.policy.measured import Known, Measured, Raised
from pretrain.policy.mixture import add_counts, judge_mixture
from pretrain.policy.regression import judge_regression
from pretrain.telemetry.sink import MonitorShown


class Watch:
    """The monitors of a run, each at its own cadence; what they remember is part of the state."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts, self._settings = parts, parts.config.monitors
        self._is_off = self._settings == MonitorSettings()
        model = parts.state.model
        self._blocks = Blocks(model, blocks(model))
        self._activations = Activations(blocks(model))
        self._attention = Attention(attentions(model))
        self._experts = Experts(routers(model))
        self._mixture = Mixture(parts.domains)
        self._block_names = tuple(name for name, _ in blocks(model))

    def wants_updates(self, step: int) -> bool:
        """Whether a monitor needs to know how far each parameter moves in the step that completes `step`."""
        return self._is_due(self._settings.blocks, step)

    def watching(self, step: int) -> AbstractContextManager[object]:
        """Read the forward pass of the step that completes `step`, where a monitor that does so is due."""
        hooks = ExitStack()
        if self._is_due(self._settings.activations, step):
            hooks.enter_context(self._activations.watching())
        if self._is_due(self._settings.attention, step):
            hooks.enter_context(self._attention.watching())
        if self._is_due(self._settings.experts, step):
            hooks.enter_context(self._experts.watching())
        return hooks

    def record(self, step_batch: StepBatch, batch: int, clip_ratio: float, updates: torch.Tensor | None) -> None:
        """Put on record what is due after a step that was taken, and the alarms that it raises or clears.

        batch: its index. clip_ratio: what its gradients, which are still in place, were multiplied by. updates: how
        far each parameter has moved, None where that was not measured.
        """
        if self._is_off:
            return
        state, settings = self._parts.state, self._settings
        step, known, raised = state.step, state.monitors, _raised(self._parts)
        seen: list[Observation] = []
        if self._is_due(settings.blocks, step):
            values = self._shown("blocks", self._blocks.values(clip_ratio, updates))
            found, known = judge_blocks(values, known, raised, step, self._block_names)
            seen += found
        if self._is_due(settings.activations, step):
            values = self._shown("activations", self._activations.values())
            found, known = judge_activations(values, known, raised, step, self._parts.config.training.precision)
            seen += found
        if self._is_due(settings.attention, step):
            found, known = judge_attention(self._shown("attention", self._attention.values()), known, raised)
            seen += found
        if self._is_due(settings.experts, step):
            loads = self._experts.values()
            values = self._shown("experts", {**loads, "load_entropy": load_entropy(loads)})
            found, known = judge_experts(values, known, raised, step)
            seen += found
        if settings.mixture.every_n_steps:
            known = add_counts(self._mixture.counts(state.loader.indices(step_batch)), known)
        if self._is_due(settings.mixture, step):
            found, known = self._judge_mixture(known, raised)
            seen += found
        state.monitors = known
        _settle(self._parts, seen, batch)

    def _judge_mixture(self, known: Known, raised: Raised) -> tuple[tuple[Observation, ...], Known]:
        shares, found, known = judge_mixture(self._mixture.shares, known, raised)
        self._parts.writer.row(rows.mixture(step=self._parts.state.step, shares=shares))
        show(self._parts, MonitorShown(step=self._parts.state.step, name="mixture", values={"share": shares}))
        return found, known

    def _shown(self, name: str, values: Measured) -> Measured:
        step = self._parts.state.step
        self._parts.writer.row(rows.monitor(step=step, name=name, values=values))
        show(self._parts, MonitorShown(step=step, name=name, values=values))
        return values

    @staticmethod
    def _is_due(cadence: Cadence, step: int) -> bool:
        return is_due(step, cadence.every_n_steps)


def watch_regression(parts: LoopParts, losses: Mapping[str, float]) -> None:
    """Compare a validation with the best before it, by domain, where that is due."""
    state = parts.state
    if not is_due(state.step, parts.config.monitors.regression.every_n_steps):
        return
    seen, state.monitors = judge_regression(losses, state.monitors, _raised(parts))
    _settle(parts, seen, state.batch - 1)


def _raised(parts: LoopParts) -> Raised:
    return {(alarm.name, alarm.subject) for alarm in parts.state.alarms.raised}


def _settle(parts: LoopParts, seen: tuple[Observation, ...] | list[Observation], batch: int) -> None:
    if seen:
        changes, parts.state.alarms = update_alarms(seen, parts.state.step, parts.state.alarms)
        record_alarms(parts, changes, batch, None)
