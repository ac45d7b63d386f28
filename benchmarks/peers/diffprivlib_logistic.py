"""diffprivlib's LogisticRegression on prepared rows: objective perturbation, pure epsilon-DP.

See `accuracy.py` for the jobs; settings are `C` (its inverse regularisation), `data_norm` and `max_iter`.
`delta` is not used: the library has none for this model. More than two classes are trained one against
the rest, each with its share of epsilon.
"""

import warnings
from typing import Any

import diffprivlib.models.logistic_regression as library
from accuracy import Job, Model, Rows, answer
from diffprivlib.validation import clip_to_norm
from scipy.sparse import csr_matrix

library_vector = library.Vector


class LogisticRegression(library.LogisticRegression):
    """The library's, with sparse rows once they are clipped: the same sums, several times faster."""

    @staticmethod
    def _clip_to_norm(array: Any, clip: float) -> Any:
        return csr_matrix(clip_to_norm(array, clip))


def train(rows: Rows, job: Job, seed: int) -> Model:
    """One fit."""
    share = len(rows.y) / job.examples

    class AsIfWhole(library_vector):
        """On public rows: the noise and the curvature that the run on all examples would add."""

        def __init__(self, *, n: int, alpha: float, **options: Any) -> None:
            super().__init__(n=job.examples, alpha=alpha / share, **options)

    library.Vector = AsIfWhole
    model = LogisticRegression(
        epsilon=job.epsilon,
        data_norm=job.settings["data_norm"],
        C=job.settings["C"] / share,  # the same penalty on the mean loss
        max_iter=job.settings["max_iter"],
        random_state=seed,
    ).fit(rows.X, rows.y)
    return model.coef_, model.intercept_, {"iterations": int(model.n_iter_.max())}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")  # that the solver stopped before it converged
    answer(train, ("diffprivlib", "scikit-learn"))
