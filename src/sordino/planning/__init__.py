"""Plan, then run: everything about privacy, decided before a single record is read.

    plan = sordino.plan("dp-memf", examples=60_000, batch_size=500, epochs=1, epsilon=0.1, delta=1e-6)
    print(plan); plan.guarantee.mu; plan.save("plan.json")

A plan is frozen and independent of the data. It holds the noise, the strategy, the guarantee and what
to expect; it prints as a page, saves as versioned JSON, and has a content hash. A run of it cannot
release anything the plan does not name.
"""

from sordino.planning.decide import compare, plan
from sordino.planning.kinds import DISCRETE, GAUSSIAN
from sordino.planning.plans import Plan

__all__ = ["DISCRETE", "GAUSSIAN", "Plan", "compare", "plan"]
