"""Empirical lower bounds on what a run reveals, beside what its plan claims.

    from sordino import audit
    print(audit.white_box(plan).verdict())                    # the real loop, 20,000 times
    print(audit.white_box(plan, stream, params, data).verdict())    # with a stream of your own
    print(audit.one_run(plan, loss, params, data, canaries).verdict())     # one real training run
    print(audit.audit_client(agreement).verdict())            # a client of a federated run
    print(audit.membership_report(plan.guarantee, members, others).verdict())   # a trained model

An audit can show that a claim is wrong; it can never show that one is right. What each of them can
and cannot see is told in docs/audit.md. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._lazy import lazy_names

if TYPE_CHECKING:
    from sordino.audit.curves import largest_power as largest_power
    from sordino.audit.curves import measured_curve as measured_curve
    from sordino.audit.federated import audit_client as audit_client
    from sordino.audit.membership import AttackScores as AttackScores
    from sordino.audit.membership import MembershipReport as MembershipReport
    from sordino.audit.membership import lira_attack as lira_attack
    from sordino.audit.membership import loss_attack as loss_attack
    from sordino.audit.membership import membership_report as membership_report
    from sordino.audit.membership import shadow_models as shadow_models
    from sordino.audit.onerun import OneRunResult as OneRunResult
    from sordino.audit.onerun import one_run as one_run
    from sordino.audit.plans import miniature as miniature
    from sordino.audit.plans import reference_plan as reference_plan
    from sordino.audit.whitebox import AuditResult as AuditResult
    from sordino.audit.whitebox import white_box as white_box

_WHERE = {
    "AttackScores": "membership",
    "AuditResult": "whitebox",
    "MembershipReport": "membership",
    "OneRunResult": "onerun",
    "audit_client": "federated",
    "largest_power": "curves",
    "lira_attack": "membership",
    "loss_attack": "membership",
    "measured_curve": "curves",
    "membership_report": "membership",
    "miniature": "plans",
    "one_run": "onerun",
    "reference_plan": "plans",
    "shadow_models": "membership",
    "white_box": "whitebox",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
