"""Asks for the temperature of the GPU when it is time to, and keeps what the policy makes of it."""

import math
import time
from collections.abc import Callable

from pretrain import progress
from pretrain.machine.signals import StopRequest
from pretrain.policy.thermal import ThermalSettings, ThermalState, is_known, next_state

# A signal waits no longer than this for a pause to hear it.
_NAP_SECONDS = 0.1


class Thermometer:
    """The state of the thermal guard, and the newest reading that led to it.

    read: the temperature in degrees Celsius, None where it cannot be read; asked at most every
    `gpu_temp_poll_interval_seconds`. clock: seconds that never go back.
    """

    def __init__(
        self,
        settings: ThermalSettings,
        read: Callable[[], float | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._read, self._clock, self._sleep = settings, read, clock, sleep
        self._due_at = -math.inf
        self._paused_at = 0.0
        self.state: ThermalState = "normal"
        self.temperature_c: float | None = None

    @property
    def paused_seconds(self) -> float:
        """Return how long ago the newest pause began."""
        return self._clock() - self._paused_at

    def poll(self, injected_c: float | None = None) -> ThermalState:
        """Return the state, after a reading where one is due; an injected one is due at once and stands for it."""
        now = self._clock()
        if injected_c is None and now < self._due_at:
            return self.state
        self._due_at = now + self._settings.gpu_temp_poll_interval_seconds
        self.temperature_c = self._read() if injected_c is None else injected_c
        before, self.state = self.state, next_state(self.state, self.temperature_c, self._settings)
        if before == "normal" and self.state == "paused":
            self._paused_at = now
        return self.state

    def wait(self, stop: StopRequest) -> None:
        """Sleep until the next reading is due, or a signal asks the run to stop."""
        while stop.name is None and (left := self._due_at - self._clock()) > 0:
            progress.moved()  # to wait for a cool GPU is no standstill
            self._sleep(min(left, _NAP_SECONDS))

    def described(self) -> str:
        """Return the newest reading in words."""
        if self.temperature_c is None:
            return "the temperature of the GPU cannot be read"
        if not is_known(self.temperature_c):
            return f"the sensor says {self.temperature_c:g} °C, which is no temperature of a GPU"
        return f"the GPU is at {self.temperature_c:g} °C"
