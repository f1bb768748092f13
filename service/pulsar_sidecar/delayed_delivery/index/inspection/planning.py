"""What doors ask of delayed indexes beside what they hold: what is overdue, and what loads and settings would cost."""

from dataclasses import dataclass

from pulsar_sidecar.delayed_delivery.index.inspection.forecast import Forecaster
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import OverdueReader
from pulsar_sidecar.delayed_delivery.index.inspection.simulate import Simulator


@dataclass(frozen=True, slots=True)
class IndexPlanning:
    """None of them changes anything; only ``overdue`` asks a topic's broker."""

    overdue: OverdueReader
    forecaster: Forecaster
    simulator: Simulator
