from .devices import DEVICES as DEVICES, Device as Device, measured as measured, this_machine as this_machine
from .fine_tuning import FineTuningPlanner as FineTuningPlanner
from .plan import (
    Lengths as Lengths,
    Plan as Plan,
    Planner as Planner,
    annotation_cost as annotation_cost,
    gigabytes as gigabytes,
)
