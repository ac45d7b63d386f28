"""Every Python block in the documentation runs, block after block of a page in one namespace."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_python_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "documentation"}
    for block in blocks(page, "python"):
        exec(compile(block, f"{page.name}", "exec"), namespace)
    assert "differential privacy" in capsys.readouterr().out


def test_the_schema_in_the_guide_is_one(tmp_path: Path) -> None:
    from sordino.models.schema import Schema

    (text,) = blocks(ROOT / "docs" / "guide.md", "toml")
    assert tomllib.loads(text)["target"] == "income"
    path = tmp_path / "facts.toml"
    path.write_text(text, encoding="utf-8")
    assert Schema.load(path).examples == 32561


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
