"""100,000 runs of every recipe with the worst example and as many without: no claim is exceeded.

All recipes together raise a false alarm in one of a thousand suites: each is audited at a confidence of
1 - 0.001 / 13. Where the analysis is exact the estimate must reach 0.9 of the claim; it is known to about
1 % (2 % for secret batches), so this cannot fail by chance.
"""

from __future__ import annotations

import pytest

from ..contract.cases import PLANNED, neighbours

RUNS = 100_000
FALSE_ALARMS = 0.001


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED)
def test_no_claim_is_exceeded(name: str) -> None:
    pair = neighbours(name)
    result = pair.audit(runs=RUNS, confidence=1 - FALSE_ALARMS / len(PLANNED), seed=1)
    assert result.runs == RUNS
    assert not result.violates, result.verdict()
    assert result.mu_estimate >= 0.9 * result.mu_claimed, result.verdict()
    assert 0 < result.epsilon_low <= result.epsilon_claimed
