from .devices import DEVICES as DEVICES, measured as measured, this_machine as this_machine
from .plan import (
    Planner as Planner,
    annotation_cost as annotation_cost,
    gigabytes as gigabytes,
)
