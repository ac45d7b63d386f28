"""Empirical lower bounds on what a run reveals, beside what its plan claims.

    from sordino import audit
    print(audit.white_box(plan).verdict())                    # the real loop, 20,000 times
    print(audit.white_box(plan, stream, params, data).verdict())    # with a stream of your own
    print(audit.one_run(plan, loss, params, data, canaries).verdict())     # one real training run
    print(audit.audit_client(agreement).verdict())            # a client of a federated run
    print(audit.membership_report(plan.guarantee, members, others).verdict())   # a trained model
    audit.check_recipe("dp-mine", reference=f)                # a recipe of your own, all its promises

An audit can show that a claim is wrong; it can never show that one is right. What each of them can
and cannot see is in docs/audit.md. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "AttackScores",
    "AuditResult",
    "ContractCheck",
    "ContractReport",
    "MembershipReport",
    "OneRunResult",
    "RecipeCheckError",
    "audit_client",
    "check_recipe",
    "clipped",
    "largest_power",
    "lira_attack",
    "loss_attack",
    "measured_curve",
    "membership_report",
    "miniature",
    "one_run",
    "reference_plan",
    "shadow_models",
    "white_box",
]

if TYPE_CHECKING:
    from sordino.audit._contract import ContractCheck as ContractCheck
    from sordino.audit._contract import ContractReport as ContractReport
    from sordino.audit._contract import RecipeCheckError as RecipeCheckError
    from sordino.audit._contract import check_recipe as check_recipe
    from sordino.audit._contract import clipped as clipped
    from sordino.audit._federated import audit_client as audit_client
    from sordino.audit._membership import AttackScores as AttackScores
    from sordino.audit._membership import MembershipReport as MembershipReport
    from sordino.audit._membership import lira_attack as lira_attack
    from sordino.audit._membership import loss_attack as loss_attack
    from sordino.audit._membership import membership_report as membership_report
    from sordino.audit._membership import shadow_models as shadow_models
    from sordino.audit._onerun import OneRunResult as OneRunResult
    from sordino.audit._onerun import auditing as auditing
    from sordino.audit._onerun import one_run as one_run
    from sordino.audit._plans import affordable as affordable
    from sordino.audit._plans import miniature as miniature
    from sordino.audit._plans import reference_plan as reference_plan
    from sordino.audit._statistics import POWER as POWER
    from sordino.audit._statistics import above as above
    from sordino.audit._statistics import largest_power as largest_power
    from sordino.audit._statistics import measured_curve as measured_curve
    from sordino.audit._tradeoff import audit_figure as audit_figure
    from sordino.audit._tradeoff import panel_of as panel_of
    from sordino.audit._whitebox import AuditResult as AuditResult
    from sordino.audit._whitebox import white_box as white_box
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
