"""The papers' own calibrations, for comparison only: nothing in Sordino adds noise by these.

One module per paper. A reference function returns the printed noise where the paper's conditions
hold (as the errata state them) and raises a `SordinoError` that names the condition where they do not;
it never returns a number outside them. `table` sets printed against exact noise, which
``python -m benchmarks calibration`` prints.

>>> printed = REFERENCES["tran-cutkosky"].calibrate(
...     epsilon=1.0, delta=1e-5, epoch_steps=1000, steps=5000, alpha=0.01
... )
>>> printed.details["V"], round(printed.noise, 1)
(57.0, 204.9)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.papers import choquette_choo, dynamic, reshef_levy, tran_cutkosky, wang
from benchmarks.papers.base import PrintedNoise as PrintedNoise


@dataclass(frozen=True)
class Reference:
    """One printed calibration: where it stands, when it holds, and the function that computes it."""

    name: str
    source: str
    recipes: tuple[str, ...]
    conditions: str
    calibrate: Callable[..., Any]


REFERENCES: Mapping[str, Reference] = MappingProxyType(
    {
        reference.name: reference
        for reference in (
            Reference(
                "tran-cutkosky",
                "Tran & Cutkosky 2022, Theorem 4 (Algorithm 1)",
                ("dp-nsgd",),
                "delta <= exp(-epsilon), alpha >= 1/N, T >= N/4",
                tran_cutkosky.algorithm_1,
            ),
            Reference(
                "tran-cutkosky-reduced",
                "Tran & Cutkosky 2022, Theorem 8 (Algorithm 2), with L put back",
                ("dp-nsgd-sr",),
                "delta <= exp(-epsilon), alpha >= 1/N, N > 5",
                tran_cutkosky.algorithm_2,
            ),
            Reference(
                "wang",
                "Wang, Jayaraman, Evans & Gu 2019, Theorem 4.1",
                ("dp-srm",),
                "s^2 >= 0.7, alpha - 1 <= (2/3) s^2 ln(1/(tau alpha (1 + s^2))) for both rates",
                wang.theorem_4_1,
            ),
            Reference(
                "wang-ye-xu",
                "Wang, Ye & Xu 2017 (DP-GD), the constant left open",
                ("dp-gd",),
                "confirmed by exact Gaussian accounting",
                wang.dp_gd,
            ),
            Reference(
                "zhang",
                "Zhang et al. 2017 (RRPSGD), the constant left open",
                ("rrpsgd",),
                "confirmed by its privacy-loss distribution",
                wang.rrpsgd,
            ),
            Reference(
                "lee-kifer",
                "Lee & Kifer 2018 (DP-AGD)",
                ("dp-agd",),
                "epsilon / (2 splits) <= 1",
                wang.dp_agd_budget,
            ),
            Reference(
                "reshef-levy",
                "Reshef & Levy 2025, Theorem 5.2 (Algorithm 1)",
                ("dp-mu2",),
                "at most T messages of a client, every example used once",
                reshef_levy.partial_participation,
            ),
            Reference(
                "reshef-levy-trusted",
                "Reshef & Levy 2025, Appendix F (Algorithm 2)",
                ("dp-mu2",),
                "every example used once",
                reshef_levy.trusted_server,
            ),
            Reference(
                "zcdp",
                "Choquette-Choo et al. 2024, Section 5 (Bun & Steinke)",
                ("dp-memf", "dp-srg-memf"),
                "none",
                choquette_choo.zcdp_multiplier,
            ),
            Reference(
                "classical",
                "Choquette-Choo et al. 2024, Corollary 4.5's conversion",
                ("dp-srgd",),
                "epsilon <= 1",
                choquette_choo.classical_multiplier,
            ),
            Reference(
                "choquette-choo",
                "Choquette-Choo et al. 2024, Corollary 4.5",
                ("dp-srgd",),
                "epsilon <= 1, beta >= 2 M T, the dimension below its limit",
                choquette_choo.corollary_4_5,
            ),
            Reference(
                "dynamic",
                "On Dynamic Noise Influence, Lemma B.3 with the right sign",
                ("dp-gd", "dp-gd-momentum"),
                "none",
                dynamic.bun_steinke_budget,
            ),
            Reference(
                "dynamic-psgd",
                "On Dynamic Noise Influence, Section 4.3",
                ("dp-psgd",),
                "confirmed by its privacy-loss distribution",
                dynamic.psgd_noise,
            ),
        )
    }
)
