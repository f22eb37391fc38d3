"""What can be said of a run before it is started: what it takes, and whether its numbers follow its width."""

from pretrain.plan.asked import plan_asked
from pretrain.plan.coordinates import CoordinateCheck
from pretrain.plan.costs import Costs, costs_of
from pretrain.plan.widths import check_coordinates

__all__ = ["CoordinateCheck", "Costs", "check_coordinates", "costs_of", "plan_asked"]
