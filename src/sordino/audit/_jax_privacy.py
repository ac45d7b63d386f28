"""What the audit takes from jax-privacy: its one-run auditor, behind one function.

`jax_privacy.auditing.CanaryScoreAuditor` turns scores of canaries that were in and that were out into
lower bounds on epsilon: Steinke, Nasr & Jagielski 2023 (`epsilon_one_run`) for any (epsilon, delta)
claim, and Mahloujifar, Melis & Chaudhuri 2024 (`epsilon_one_run_fdp`) for a Gaussian-DP claim.
"""

from __future__ import annotations

from typing import Any

from sordino._base.errors import MissingExtraError


def auditing() -> Any:
    """The module `jax_privacy.auditing`; it takes a second to import."""
    try:
        from jax_privacy import auditing as module
    except ImportError:
        raise MissingExtraError(
            "an audit in one run needs jax-privacy; install it with: pip install 'sordino[audit]'"
        ) from None
    return module
