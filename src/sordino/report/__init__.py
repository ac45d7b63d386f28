"""What does a run look like to people? Pages, plots and words about plans, runs and guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["plan_figure", "write_report"]

if TYPE_CHECKING:
    from sordino.report._html import POLICY as POLICY
    from sordino.report._html import figure_html as figure_html
    from sordino.report._html import glossary_html as glossary_html
    from sordino.report._html import list_html as list_html
    from sordino.report._html import meaning_html as meaning_html
    from sordino.report._html import notes_html as notes_html
    from sordino.report._html import plan_html as plan_html
    from sordino.report._html import tradeoff_html as tradeoff_html
    from sordino.report._html import write_report as write_report
    from sordino.report._measure import COVERED as COVERED
    from sordino.report._measure import NO_PRIVATE_DATA as NO_PRIVATE_DATA
    from sordino.report._measure import NOT_COVERED as NOT_COVERED
    from sordino.report._measure import Measured as Measured
    from sordino.report._measure import ScoreTable as ScoreTable
    from sordino.report._plots import BLUE as BLUE
    from sordino.report._plots import GREY as GREY
    from sordino.report._plots import INK as INK
    from sordino.report._plots import NORMAL as NORMAL
    from sordino.report._plots import SMALL as SMALL
    from sordino.report._plots import VERMILION as VERMILION
    from sordino.report._plots import add_legend as add_legend
    from sordino.report._plots import curves_figure as curves_figure
    from sordino.report._plots import decimated as decimated
    from sordino.report._plots import metric_names as metric_names
    from sordino.report._plots import name_axes as name_axes
    from sordino.report._plots import new_figure as new_figure
    from sordino.report._plots import plan_figure as plan_figure
    from sordino.report._plots import step_ticks as step_ticks
    from sordino.report._plots import to_svg as to_svg
    from sordino.report._style import CSS as CSS
    from sordino.report._words import GLOSSARY as GLOSSARY
    from sordino.report._words import guessing as guessing
    from sordino.report._words import limits as limits
    from sordino.report._words import meaning as meaning
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
