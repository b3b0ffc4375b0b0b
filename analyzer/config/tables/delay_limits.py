"""`[delays]`: which delays and clock differences are an alarm."""

from __future__ import annotations

from typing import Annotated

from analyzer.config.tables import ConfigTable
from analyzer.config.values import duration_between
from analyzer.counting.measured_delays import DelayLimits


class DelaysTable(ConfigTable):
    shipping_delay_max: Annotated[float, duration_between(0.1, 86_400)] = 30.0
    clock_skew_max: Annotated[float, duration_between(0.1, 3_600)] = 2.0

    @property
    def limits(self) -> DelayLimits:
        return DelayLimits(self.shipping_delay_max, self.clock_skew_max)
