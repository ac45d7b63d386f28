"""Experiments: declared in small files, run in resumable cells, told as tables and figures.

    python -m benchmarks run list
    python -m benchmarks run a c --quick

An experiment (`experiment.py`) names populations, budgets, contenders, seeds and the figures that a
paper prints. It falls into cells (`cells.py`), each of which a worker process runs on its own
(`workers.py`, `running.py`) and stores whole (`store.py`); what is stored becomes a Parquet file, a
Markdown page and a figure (`results.py`, `page.py`, `figure.py`). See docs/bench.md.
"""
