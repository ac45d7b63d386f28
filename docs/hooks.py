"""What MkDocs does besides: whatever pages of figures there are in ``docs/results`` go into the menu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SECTION = "Evidence"
INDEX, TIMES = "index", "-times"


def title_of(page: Path) -> str:
    """The page's heading, or its file's name."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return page.stem


def on_config(config: Any) -> Any:
    """Append ``results/*.md`` to the section of figures: the index first, times apart."""
    folder = Path(config["docs_dir"])
    found = sorted((folder / "results").glob("*.md"), key=lambda page: (page.stem != INDEX, page))

    def entry(page: Path) -> dict[str, str]:
        return {title_of(page): page.relative_to(folder).as_posix()}

    times = [entry(page) for page in found if page.stem.endswith(TIMES)]
    for section in config["nav"]:
        if SECTION in section:
            section[SECTION] += [entry(page) for page in found if not page.stem.endswith(TIMES)]
            section[SECTION] += [{"CPU times": times}] if times else []
    return config
