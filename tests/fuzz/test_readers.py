"""Whatever the bytes: a reader reads them, or refuses them in one clear sentence.

The table of readers and the contract are those of the coverage-guided fuzzer (`python -m fuzz`); here
hypothesis mutates, and shrinks what it finds.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.contract import BrokenContractError, attempt, check_discreet, check_sentence
from fuzz.mutate import spoil_bytes
from fuzz.readers import READERS, Reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError

FEW, MANY = 40, 2000
# In the time of CI few examples; `make test-slow` and `make fuzz` try many.
QUICK = settings(
    max_examples=FEW,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
THOROUGH = settings(QUICK, max_examples=MANY, derandomize=False)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    yield made
    assert not list(made.iterdir())  # readers write nothing
    shutil.rmtree(made)


def feed(reader: Reader, folder: Path, name: str, content: bytes) -> str | None:
    path = folder / name
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, on numbers out of range
            return attempt(reader, path, content)
    finally:
        path.unlink()


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_read(name: str, folder: Path) -> None:
    """Else mutations would start from files that are refused for another reason."""
    reader = READERS[name]
    inputs = reader.inputs()
    assert inputs
    for data in inputs:
        file, content = reader.case(data)
        if name == "csv" and file.endswith(".tsv") != (b"\t" in data):
            continue  # the wrong separator makes a table of one column, or none
        assert feed(reader, folder, file, content) is None


def _spoilt(reader: Reader, folder: Path, data: st.DataObject) -> None:
    inputs = reader.inputs()
    seed = data.draw(st.sampled_from(inputs))
    rng = data.draw(st.randoms(use_true_random=False, note_method_calls=False))
    choice, body = (seed[:1], seed[1:]) if len(reader.names) > 1 else (b"", seed)
    spoil = reader.spoil if data.draw(st.booleans()) else spoil_bytes
    feed(reader, folder, *reader.case(choice + spoil(body, random.Random(rng.getrandbits(64)))))


@pytest.mark.parametrize("name", READERS)
def test_spoilt_files(name: str, folder: Path) -> None:
    @QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _spoilt(READERS[name], folder, data)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_spoilt_files(name: str, folder: Path) -> None:
    @THOROUGH
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _spoilt(READERS[name], folder, data)

    check()


@pytest.mark.parametrize("name", READERS)
def test_random_bytes(name: str, folder: Path) -> None:
    @QUICK
    @given(st.binary(max_size=300))
    def check(content: bytes) -> None:
        feed(READERS[name], folder, *READERS[name].case(content))

    check()


@pytest.mark.parametrize("name", ["plan", "schema"])
def test_any_json(name: str, folder: Path) -> None:
    """JSON of every shape, some of it under the names of real fields."""
    reader = READERS[name]
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9))
    words = st.one_of(st.sampled_from(["kind", "steps", "name", "low", "values"]), st.text())
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    )
    import json

    seed = json.loads(next(iter(reader.seeds())))

    @settings(QUICK, max_examples=15)
    @given(st.dictionaries(st.sampled_from(sorted(seed)), values, min_size=1, max_size=3))
    def check(changes: dict[str, object]) -> None:
        kept = {**seed, **changes, "format": seed["format"], "version": seed["version"]}
        feed(reader, folder, reader.names[0], json.dumps(kept).encode())
        feed(reader, folder, reader.names[0], json.dumps(changes).encode())

    check()


class TestTheContractItself:
    """A check that cannot fail would be worth nothing."""

    path = Path("input.csv")

    @pytest.mark.parametrize(
        "message",
        [
            "",
            "something is wrong",
            "input.csv is wrong\nand more",
            "input.csv has \x1b[31m",
            "input.csv: KeyError('format')",
            "input.csv: <ast.Dict object at 0x7f00deadbeef>",
            "input.csv: Population.__init__() got an unexpected argument",
            "input.csv is " + "very " * 100 + "long",
        ],
    )
    def test_messages_that_are_no_clear_sentence(self, message: str) -> None:
        with pytest.raises(BrokenContractError):
            check_sentence(message, self.path)

    def test_a_clear_sentence(self) -> None:
        check_sentence("'input.csv' has a header but no rows", self.path)

    def test_quotations_of_rows(self) -> None:
        content = b"diagnosis\nmelancholia\n"
        check_discreet("'input.csv' has no column 'diagnosis'", self.path, content)
        with pytest.raises(BrokenContractError, match="quotes"):
            check_discreet("'input.csv': could not convert 'melancholia'", self.path, content)

    def test_other_exceptions_are_not_refusals(self, tmp_path: Path) -> None:
        def broken(path: Path) -> None:
            raise KeyError(path.name)

        def refuses(path: Path) -> None:
            raise SordinoError(f"{str(path)!r} is empty")

        def write(reader: Reader) -> str | None:
            return feed(reader, tmp_path, "input", b"")

        sample = READERS["csv"]
        fields = {"check": sample.check, "seeds": sample.seeds}
        with pytest.raises(KeyError):
            write(Reader("broken", broken, **fields))  # type: ignore[arg-type]
        assert write(Reader("refuses", refuses, **fields))  # type: ignore[arg-type]
