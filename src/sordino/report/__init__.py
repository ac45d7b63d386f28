"""What does a run look like to people? Pages, plots and words about plans, runs and guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["plan_figure", "write_report"]

if TYPE_CHECKING:
    from sordino.report._measure import COVERED as COVERED
    from sordino.report._measure import NO_PRIVATE_DATA as NO_PRIVATE_DATA
    from sordino.report._measure import NOT_COVERED as NOT_COVERED
    from sordino.report._measure import Measured as Measured
    from sordino.report._measure import ScoreTable as ScoreTable
    from sordino.report._plots import BLUE as BLUE
    from sordino.report._plots import GREY as GREY
    from sordino.report._plots import INK as INK
    from sordino.report._plots import VERMILION as VERMILION
    from sordino.report._plots import add_legend as add_legend
    from sordino.report._plots import decimated as decimated
    from sordino.report._plots import name_axes as name_axes
    from sordino.report._plots import new_figure as new_figure
    from sordino.report._plots import plain_axes as plain_axes
    from sordino.report._plots import plan_figure as plan_figure
    from sordino.report._plots import step_ticks as step_ticks
    from sordino.report._plots import to_svg as to_svg
    from sordino.report._render import render as render
    from sordino.report._run import curve_facts as curve_facts
    from sordino.report._run import guarantee_numbers as guarantee_numbers
    from sordino.report._run import plan_facts as plan_facts
    from sordino.report._run import tradeoff_facts as tradeoff_facts
    from sordino.report._run import write_report as write_report
    from sordino.report._score_plots import CALIBRATION as CALIBRATION
    from sordino.report._score_plots import ERRORS as ERRORS
    from sordino.report._score_plots import ROC as ROC
    from sordino.report._score_plots import EvaluationFacts as EvaluationFacts
    from sordino.report._score_plots import ScoreCurve as ScoreCurve
    from sordino.report._score_plots import errors_figure as errors_figure
    from sordino.report._score_plots import scores_figure as scores_figure
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
