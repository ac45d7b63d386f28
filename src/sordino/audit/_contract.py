"""What every recipe promises, as a function that anybody's recipe can be held to.

    def reference(gradients, numbers, t):             # in plain NumPy, (examples, d)
        return clipped(gradients[t], numbers["clip"])

    report = audit.check_recipe("dp-mine", reference=reference)      # raises if a promise is broken
    print(report.verdict())

Each check is a function of a plan, or of a pair of data sets, and returns what is wrong in sentences.
The library's own recipes are tested by the same functions (docs/own-recipe.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import PlanMismatchError, SordinoError, shown
from sordino._base.keys import RunKey
from sordino._base.types import Json, PyTree
from sordino.audit._brute_force import brute_force_mu, noising_matrices
from sordino.audit._canary import DIMENSIONS, PLANE, Canary, planned_precision
from sordino.audit._plans import is_secret, reference_plan, small_plan
from sordino.audit._recording import Recording, audit_key
from sordino.audit._whitebox import RUNS, AuditResult, Neighbours
from sordino.engine import TrainingRun, train
from sordino.parts import LeastSquares, Logistic
from sordino.parts.contributions import CONTRIBUTIONS, Lagged
from sordino.parts.sampling import FIXED, public_order
from sordino.planning import RECIPES, Plan, Recipe, plan, register
from sordino.planning.recipes import recipe_named
from sordino.privacy import Adjacency

Array = NDArray[np.float64]
Gradients = Callable[[Array], Array]
# From per-example gradients at the points of steps 0 to t, and the contribution's numbers, to what each
# example adds in step t: (examples, d), or one such array for each channel.
Reference = Callable[[Sequence[Array], Json, int], ArrayLike | Sequence[Array]]

# Runs by which the noise's covariances are estimated.
NOISE_RUNS = 4000
# Standard errors: up to 6 x 256 covariances are compared, a false alarm has probability 1e-3 at most.
NOISE_LIMIT = 5.2
# Sizes of the run that is compared with a reference, and resumed.
SIZES = {"examples": 23, "batch_size": 5, "steps": 12}
FEATURES = 7
# A clip that binds for some of the examples and not for others.
BINDING = 0.4
# What the loss of a quadratic may keep, and how many labels must be right, at a comfortable budget.
MOST_LEFT, FEWEST_RIGHT = 0.2, 0.9


class RecipeCheckError(SordinoError, AssertionError):
    """A recipe breaks a promise; `report` has all checks."""

    def __init__(self, report: ContractReport) -> None:
        super().__init__(report.verdict())
        self.report = report


@dataclass(frozen=True)
class ContractCheck:
    """One promise.

    Attributes:
      name: what was checked.
      problems: what is wrong, in sentences; none if the promise is kept.
      skipped: why it was not checked, where it does not apply.
    """

    name: str
    problems: tuple[str, ...] = ()
    skipped: str = ""

    def line(self) -> str:
        """The check in one line."""
        if self.problems:
            more = len(self.problems) - 1
            return f"{self.name}: FAILED: {self.problems[0]}" + (f" (and {more} more)" * (more > 0))
        return f"{self.name}: " + (f"not checked: {self.skipped}" if self.skipped else "passed")


@dataclass(frozen=True)
class ContractReport:
    """What `check_recipe` found."""

    recipe: str
    checks: tuple[ContractCheck, ...]
    audit: AuditResult | None = None

    @property
    def passed(self) -> bool:
        """Whether no promise is broken."""
        return not any(check.problems for check in self.checks)

    def verdict(self) -> str:
        """All checks, a line each."""
        applied = [check for check in self.checks if not check.skipped]
        kept = sum(not check.problems for check in applied)
        first = f"{self.recipe} passes {kept} of {len(applied)} checks:"
        return "\n  ".join([first, *(check.line() for check in self.checks)])


def check_recipe(
    recipe: str | Recipe,
    *,
    reference: Reference | None = None,
    runs: int = RUNS,
    seed: int = 0,
    **options: Any,
) -> ContractReport:
    """Hold a recipe to what every recipe promises; raises `RecipeCheckError` where it does not.

    Small plans are made, run, compared and attacked: the stated mu against brute force, the bound on one
    example's contribution, the noise's covariances, the claim (a white-box audit), the algorithm against
    `reference`, resumption, learning, and plans as files. It takes 5 to 15 seconds.

    Args:
      recipe: a name, or a recipe that is then known for the time of the check.
      reference: ``f(gradients, numbers, t)``: what each example adds in step t, in plain NumPy.
        ``gradients[s]`` has the gradients of all examples at the point of step s (examples, d), up to
        s = t; `numbers` are the contribution's fields. With several channels, one array for each.
      runs: of the white-box audit, with the worst example; as many without.
      seed: of the audit's run keys.
      options: arguments of `sordino.plan` for all plans that are made.
    """
    with _known(recipe) as spec:
        return _checked(spec, reference, runs, seed, options)


def _checked(
    spec: Recipe, reference: Reference | None, runs: int, seed: int, options: Json
) -> ContractReport:
    checks, result = [], None
    loop = "" if not spec.adaptive else "the run decides what it releases"
    planned = loop if spec.private else "it promises no privacy"

    def check(name: str, why_not: str, problems: Callable[[], list[str]]) -> None:
        checks.append(ContractCheck(name, () if why_not else tuple(problems()), why_not))

    check("the stated mu", planned, lambda: _every_mu(spec, options))
    if planned:
        checks += [ContractCheck(name, skipped=planned) for name in ("the bound", "the noise")]
    else:
        pair = Neighbours.of(reference_plan(spec.name, **options))
        check("the bound", "", lambda: contribution_problems(pair))
        check("the noise", "", lambda: noise_problems(pair))
        result = pair.audit(runs=runs, seed=seed)
    check("the claim", planned, lambda: claim_problems(pair.plan, result))
    why_not = loop or ("" if reference is not None else "no reference was given")
    check("the algorithm", why_not, lambda: reference_problems(_compared(spec, options), reference))
    check("resumption", loop, lambda: resumption_problems(_runs_of(_compared(spec, options))))
    check("learning", "", lambda: learning_problems(comfortable_plan(spec.name, **options)))
    check(
        "plans as files", "", lambda: file_problems(small_plan(spec.name, **_budget(spec, options)))
    )
    report = ContractReport(spec.name, tuple(checks), result)
    if not report.passed:
        raise RecipeCheckError(report)
    return report


@contextmanager
def _known(recipe: str | Recipe) -> Iterator[Recipe]:
    """The recipe, in the table at least for as long as this lasts."""
    if isinstance(recipe, str):
        yield recipe_named(recipe)
        return
    with ExitStack() as stack:
        stack.enter_context(RECIPES.temporary())
        stack.enter_context(CONTRIBUTIONS.temporary())
        register(recipe)
        yield recipe


# ---- the stated mu -------------------------------------------------------------------------------------


def mu_problems(plan: Plan) -> list[str]:
    """The plan's mu against brute force; that of secret batches without credit for the secret."""
    lower, upper = brute_force_mu(plan)
    stated, analysis = plan.guarantee.mu, plan.guarantee.analysis
    what = f"{plan.population.sampling} batches, {plan.mechanism.kind} noise: mu {stated:.6g} is stated"
    problems = []
    if lower > stated * (1 + 1e-9) or (upper > stated * (1 + 1e-9) and analysis != "amplified"):
        problems.append(f"{what}, and one example can move the releases by {max(lower, upper):.6g}")
    if analysis == "exact" and not np.isclose(stated, lower, rtol=2e-5):
        problems.append(
            f"{what} as exact, and no example moves the releases by more than {lower:.6g}"
        )
    if not plan.contribution.bound_is_tight and not np.isclose(stated, upper, rtol=2e-5):
        problems.append(f"{what}, and the bounds alone would give {upper:.6g}")
    return problems


def _every_mu(spec: Recipe, options: Json) -> list[str]:
    """All samplings with all mechanisms, but for pairs that planning refuses."""
    usual = {**spec.defaults(), **options}
    problems = []
    for sampling in spec.samplings:
        for mechanism in spec.mechanisms:
            changes = {**options, "sampling": sampling, "mechanism": mechanism}
            try:
                built = small_plan(spec.name, noise_multiplier=1.0, **changes)
            except SordinoError:
                if (sampling, mechanism) == (usual["sampling"], usual["mechanism"]):
                    raise
                continue
            problems += mu_problems(built)
    return problems


# ---- what one example adds, and the noise ----------------------------------------------------------------


def silent_sums(pair: Neighbours, factor: float, script: Array | None = None) -> Array:
    """Clipped sums (channels, steps, PLANE) of the real loop, the canary's script times a factor."""
    canary = pair.canary
    if script is not None:
        canary = Canary(canary.row, canary.pattern, canary.directions, script, canary.mu)
    run = pair.worlds[1].on(canary.data(pair.plan, factor, pair.ticks)).silenced()
    sums = next(run.releases(0, 200)).sums[..., -DIMENSIONS:]
    if pair.plan.population.is_secret:
        # What it adds in the steps that it is drawn for; all runs together see every step.
        size = np.linalg.norm(sums[..., :PLANE], axis=-1, keepdims=True)
        sums = np.take_along_axis(sums, np.argmax(size, axis=0)[None], axis=0)
    return np.swapaxes(sums[0], 0, 1)[..., :PLANE].astype(np.float64)


def contribution_problems(pair: Neighbours) -> list[str]:
    """The canary adds exactly what it was designed to, at the plan's bounds; no script adds more."""
    plan, canary = pair.plan, pair.canary
    bounds = plan.contribution.bounds(plan.population.steps)
    shift = canary.shift(plan)[..., :PLANE]
    problems = []
    # Of others' bounds that no example attains there is no telling which script comes closest.
    if plan.contribution.bound_is_tight or isinstance(plan.contribution, Lagged):
        for sign, who in ((1.0, "the worst example"), (-1.0, "its opposite")):
            sums = silent_sums(pair, sign)
            if not np.allclose(sums, sign * shift, atol=2e-3 * bounds.min(), rtol=2e-3):
                ratio = np.linalg.norm(sums, axis=2) / bounds
                problems.append(
                    f"{who} should add its bound in every step, and adds {ratio.max():.4g} times the "
                    f"bound at most (clips that bind were expected to)"
                )
        lengths = np.linalg.norm(shift, axis=2)[:, list(canary.pattern)]
        if not np.allclose(lengths, bounds[:, list(canary.pattern)], rtol=1e-6, atol=0):
            problems.append("the worst example was not designed to attain the bounds")
    if silent_sums(pair, 0.0).any():
        problems.append("an example without a gradient adds something")
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.3, 1.0, 30.0, 1e6):
        script = np.zeros_like(canary.script)
        script[:, :PLANE] = (
            scale
            * rng.normal(size=(len(script), PLANE))
            * rng.lognormal(0, 2, size=(len(script), 1))
        )
        sizes = np.linalg.norm(silent_sums(pair, 1.0, script), axis=2)
        if not (sizes <= bounds * (1 + 1e-6)).all():
            most = np.max(sizes / bounds)
            problems.append(
                f"an example with gradients of size about {scale:g} adds {most:.4g} times its bound"
            )
    return problems


def noise_problems(pair: Neighbours) -> list[str]:
    """Every covariance between two releases as planned, coordinates and channels independent."""
    plan = pair.plan
    absent = pair.worlds[1].on(pair.canary.data(plan, 0.0, pair.ticks))
    sums = np.concatenate([r.sums for r in absent.releases(0, NOISE_RUNS)])
    runs, T, channels, d = sums.shape
    # The clock and the canary's plane: nobody contributes there.
    noise = sums[..., : d - 1].astype(np.float64)
    planned = np.zeros((channels * T, channels * T))
    for c, precision in enumerate(planned_precision(plan)):
        own = slice(c * T, (c + 1) * T)
        planned[own, own] = np.linalg.inv(precision)
    columns = noise.swapaxes(1, 2).reshape(runs, channels * T, d - 1)
    furthest = 0.0
    for i in range(d - 1):
        for j in range(i + 1):
            expected = planned if i == j else np.zeros_like(planned)
            estimate = columns[:, :, i].T @ columns[:, :, j] / runs
            variance = np.outer(np.diag(planned), np.diag(planned)) + expected**2
            off = np.abs((estimate - expected) / np.sqrt(variance / runs)).max()
            furthest = max(furthest, float(off))
    if furthest < NOISE_LIMIT:
        return []
    return [f"a covariance of the noise is {furthest:.1f} standard errors from the planned one"]


def claim_problems(plan: Plan, result: AuditResult | None) -> list[str]:
    """The audit's interval must not lie above the claim, and must meet [0.9, 1.0] of it."""
    assert result is not None
    problems = [result.verdict()] if result.violates else []
    attainable = plan.contribution.bound_is_tight or isinstance(plan.contribution, Lagged)
    if attainable and result.mu_high < 0.9 * result.mu_claimed:
        problems.append(f"the claim is far above what the worst example shows: {result.verdict()}")
    return problems


# ---- the algorithm ---------------------------------------------------------------------------------------


def clipped(rows: Array, norm: float) -> Array:
    """Each row scaled to at most this norm, in double precision: for references."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, norm / np.maximum(lengths, 1e-300))


def logistic_data(n: int, d: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows of very different length, so that clips bind for some and not for others."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.lognormal(0.0, 0.7, size=(n, 1)) / np.sqrt(d)
    y = (X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) > 0).astype(np.float32)
    return X.astype(np.float32), y


def row_gradients(X: ArrayLike, y: ArrayLike) -> Gradients:
    """Per-example gradients of the logistic loss, double precision."""
    rows, labels = np.asarray(X, np.float64), np.asarray(y, np.float64)

    def gradients(w: Array) -> Array:
        residuals: Array = 1 / (1 + np.exp(-rows @ w)) - labels
        return residuals[:, None] * rows

    return gradients


def batches_of(plan: Plan, key: RunKey) -> list[NDArray[np.int64]]:
    """The rows of each step, as the plan's population says."""
    population = plan.population
    n, b, T = population.examples, population.batch_size, population.steps
    if population.sampling == FIXED:
        order = public_order(population)
        if population.is_full_batch or order is None:
            order = np.arange(n)
        slots = [order[i : i + b] for i in range(0, n, b)]
        return [slots[t % len(slots)] for t in range(T)]
    taken = []
    for t in range(T):
        indices, mask = population.batches(key, t, 1)
        taken.append(indices[0][mask[0] > 0])
    return taken


def reference_problems(plan: Plan, reference: Reference | None) -> list[str]:
    """Without noise, the sums of every step at the run's own points are those of the reference."""
    assert reference is not None
    X, y = logistic_data(plan.population.examples, FEATURES)
    start = (0.05 * np.arange(FEATURES) - 0.1).astype(np.float32)
    gradients = row_gradients(X, y)
    run = Recording(plan, Logistic(), start, (X, y)).silenced()
    (released,) = run.releases(0, 1)
    sums, points = released.sums[0].astype(np.float64), released.points[0].astype(np.float64)
    # Public batches are those of the recording's own key, secret ones of the audit's.
    key = audit_key(0, 0) if plan.population.is_secret else run.key
    numbers = plan.contribution.to_json()
    bounds = plan.contribution.bounds(plan.population.steps)
    seen: list[Array] = []
    for t, rows in enumerate(batches_of(plan, key)):
        seen.append(gradients(points[t]))
        try:
            parts = reference(seen, dict(numbers), t)
            parts = np.asarray(parts, np.float64).reshape(-1, *seen[t].shape)
        except Exception as error:
            return [f"the reference fails in step {t + 1}: {type(error).__name__}: {error}"]
        if len(parts) != plan.contribution.channels:
            return [f"the reference has {len(parts)} channels, not {plan.contribution.channels}"]
        for channel, part in enumerate(parts):
            expected, scale = part[rows].sum(axis=0), max(1, len(rows)) * bounds[channel, t]
            if not np.allclose(sums[t, channel], expected, rtol=1e-3, atol=2e-4 * scale):
                off = np.linalg.norm(sums[t, channel] - expected)
                return [
                    f"in step {t + 1} the sum of a batch is {off:.3g} away from that of the reference, "
                    f"whose length is {np.linalg.norm(expected):.3g}"
                ]
    return []


def _compared(spec: Recipe, options: Json) -> Plan:
    """A plan whose clip binds now and then, with sizes that leave the last batch short."""
    settings = {**SIZES, **({"clip": BINDING, "noise_multiplier": 0.5} if spec.private else {})}
    return small_plan(spec.name, **{**settings, **options})


# ---- resumption ------------------------------------------------------------------------------------------


def same_bits(a: PyTree, b: PyTree) -> bool:
    """Whether two pytrees are equal to the bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def _runs_of(plan: Plan) -> Callable[[int], TrainingRun]:
    data = logistic_data(plan.population.examples, FEATURES)
    start = np.zeros(FEATURES, np.float32)

    def begin(seed: int) -> TrainingRun:
        key = RunKey.from_insecure_seed(seed)
        return TrainingRun(plan, Logistic(), start, data, key=key, watched=True)

    return begin


def resumption_problems(begin: Callable[[int], TrainingRun]) -> list[str]:
    """From what was released and the run key alone, at every chunk's end, bit for bit.

    Args:
      begin: starts a watched run with the key of a seed.
    """
    run = begin(5)
    states = [run.released()]
    while not run.finished:
        run.advance()
        states.append(run.released())
    problems = []
    if len(states) <= 2 or same_bits(states[0].params, states[-1].params):
        problems.append("the run moves nothing, or has no place to be stopped at")
    for before, after in pairwise(states):
        resumed = begin(5)
        resumed.restore(jax.tree.map(np.array, before))
        if resumed.done != before.step:
            problems.append(f"resumed at step {before.step}, the run says {resumed.done}")
        resumed.advance()
        if not same_bits(resumed.released(), after):
            problems.append(f"resumed at step {before.step}, the next release is another one")
    if not same_bits(resumed.output(), run.output()):
        problems.append("resumed before the last step, the result is another one")
    try:
        run.advance()
        problems.append("more steps than planned are not refused")
    except PlanMismatchError:
        pass
    other = begin(6)
    other.advance()
    if run.plan.guarantee.is_private and same_bits(other.released().params, states[1].params):
        problems.append("two run keys have the same noise")
    return problems


# ---- learning --------------------------------------------------------------------------------------------


def comfortable_plan(name: str, examples: int = 2000, **options: Any) -> Plan:
    """A plan with a budget that should not hurt, at the recipe's own settings.

    The last iterate is returned: one that is drawn at random may come before anything was learned.
    """
    spec = recipe_named(name)
    usual = {**spec.defaults(), **options}
    arguments: Json = {"examples": examples, "batch_size": 200, "epochs": 10}
    if spec.full_batch:
        arguments = {"examples": examples, "steps": 40}
    if usual["output"] != "last":
        arguments["output"] = "last"
    if spec.private and is_secret(usual["sampling"]):
        arguments["noise_multiplier"] = 1.0  # quicker than to search for the noise of an epsilon
    elif spec.private:
        arguments |= {"epsilon": 8.0, "delta": 1e-5}
    return plan(name, **{**options, **arguments})


def learning_problems(plan: Plan) -> list[str]:
    """A quadratic and a logistic problem are solved at a comfortable budget."""
    n, d = plan.population.examples, 3
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d)).astype(np.float32) / 2
    target = np.array([0.8, -0.5, 0.3], np.float32)
    start = np.zeros(d, np.float32)
    y = X @ target
    params = train(plan, LeastSquares(), start, (X, y), insecure_seed=0).params
    problems = []
    left = np.mean((X @ np.asarray(params) - y) ** 2) / np.mean(y**2)
    if not left < MOST_LEFT:
        problems.append(f"{left:.3f} of a quadratic's loss is left")
    labels = (y > 0).astype(np.float32)
    result = train(plan, Logistic(), start, (X, labels), insecure_seed=0)
    right = np.mean((X @ np.asarray(result.params) > 0) == (labels > 0.5))
    if not right > FEWEST_RIGHT:
        problems.append(f"{right:.1%} of a logistic problem's labels are right")
    if result.plan.hash != plan.hash:
        problems.append("the result names another plan")
    if plan.guarantee.is_private and not result.guarantee.epsilon(1e-5) <= 8.0:
        problems.append("the result states a larger epsilon than was planned for")
    return problems


# ---- plans as files --------------------------------------------------------------------------------------


def _budget(spec: Recipe, options: Json) -> Json:
    """A budget to plan for; for secret batches the noise, which is quicker than to search for it."""
    if not spec.private:
        return options
    secret = is_secret({**spec.defaults(), **options}["sampling"])
    return {**({"noise_multiplier": 1.0} if secret else {"epsilon": 3.0, "delta": 1e-3}), **options}


def file_problems(plan: Plan) -> list[str]:
    """A plan survives as JSON; one that was changed by hand is refused."""
    text = json.dumps(plan.to_json())
    back = Plan.from_json(json.loads(text))
    same = {
        "it is another plan": back == plan and back.guarantee == plan.guarantee,
        "its hash is another one": back.hash == plan.hash,
        "it is written differently": json.dumps(back.to_json()) == text,
        "it is described differently": str(back) == str(plan),
        "its noise is another one": np.array_equal(back.noise_stds(), plan.noise_stds()),
    }
    if not recipe_named(plan.recipe).adaptive:
        same["its noise is correlated differently"] = np.array_equal(
            noising_matrices(back), noising_matrices(plan)
        )
    problems = [f"read back from a file, {words}" for words, kept in same.items() if not kept]
    for change in changes_by_hand(plan):
        try:
            Plan.from_json({**json.loads(text), **change})
            problems.append(f"changed by hand, a plan is read: {shown(change)}")
        except SordinoError:
            pass
    return problems


def changes_by_hand(plan: Plan) -> list[Json]:
    """Fields of a plan's file that must not be believed."""
    data = json.loads(json.dumps(plan.to_json()))
    spec, stated = recipe_named(plan.recipe), data["guarantee"]
    changes: list[Json] = [
        {"format": "something else"},
        {"version": -1},
        {"recipe": "dp-nothing"},
        {"mechanism": None},
        {"population": {**data["population"], "steps": plan.population.steps + 1}},
    ]
    if spec.private:
        changes += [
            {"noise": 0.0},
            {"guarantee": {**stated, "analysis": "none", "gaussian_mu": None}},
            {"epsilon": 0.1, "delta": 1e-6},
        ]
    else:
        changes += [{"guarantee": {**stated, "analysis": "exact", "gaussian_mu": 0.1}}]
    if spec.adaptive:
        # Another noise or adjacency is no lie here: the run pays for what it uses, from this budget.
        changes += [{"schedule": {**data["schedule"], "mu": 2 * data["schedule"]["mu"]}}]
    elif spec.private:
        changes += [
            {"noise": data["noise"] / 2},
            {"guarantee": {**stated, "adjacency": Adjacency.REPLACE_ONE.value}},
        ]
    return changes
