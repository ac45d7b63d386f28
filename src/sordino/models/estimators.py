"""Where estimators stood in 0.5, which their pickles name: they are refused here in words. Goes in 0.7."""

from __future__ import annotations

from typing import NoReturn

from sordino._base.errors import SordinoError


def __getattr__(name: str) -> NoReturn:
    if name not in ("PrivateClassifier", "PrivateRegressor"):
        raise AttributeError(name)
    raise SordinoError(
        f"this {name} was pickled by Sordino 0.5, or its module is named as there; open it with 0.5.1 and "
        f"keep what it learnt (coef_, intercept_, classes_), or import {name} from sordino"
    )
