"""The file that all parties sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts._losses import Logistic
from sordino.together.parties._consortium import Consortium, PartyCard
from sordino.together.parties._terms import agree
from sordino.together.sites._models import ModelSpec
from sordino.together.sites._parties import CARD, KEY, PAD_KEY, PartySite, create_party

MODEL = {"kind": "own", "name": "tests.parties.test_consortium:model"}
ALLOW = [MODEL["name"]]


model = ModelSpec(Logistic(), np.zeros(4, np.float32), load=lambda path: ())


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    cards = tuple(
        create_party(tmp_path / name, name, examples=n, port=7000 + 10 * i)
        for i, (name, n) in enumerate({"north": 120, "south": 80}.items())
    )
    terms = agree(
        "dp-sgd", examples=(120, 80), parameters=4, batch_size=50, steps=4, engine="mask",
        epsilon=1.0, delta=1e-4,
    )  # fmt: skip
    return Consortium("study", cards, terms, MODEL)


def test_secrets_are_the_owner_s_only(tmp_path: Path, consortium: Consortium) -> None:
    for name in (KEY, PAD_KEY):
        assert (tmp_path / "north" / name).stat().st_mode & 0o077 == 0
    public = json.dumps(consortium.to_json())
    assert (tmp_path / "north" / PAD_KEY).read_bytes().hex() not in public
    assert "PRIVATE" not in public
    with pytest.raises(SordinoError, match="already"):
        create_party(tmp_path / "north", "north", examples=5)


def test_it_reads_back_and_its_digest_covers_everything(
    tmp_path: Path, consortium: Consortium
) -> None:
    consortium.save(tmp_path / "file.json")
    again = Consortium.load(tmp_path / "file.json")
    assert again == consortium
    assert again.digest == consortium.digest
    data = consortium.to_json()
    digests = {consortium.digest}
    for changed in (
        {"name": "another"},
        {"timeout": 61.0},
        {"model": {"kind": "own", "name": "other:model"}},
        {"partners": data["partners"][::-1], "terms": _swapped(data["terms"])},
    ):
        digests.add(Consortium.from_json({**data, **changed}).digest)
    assert len(digests) == 5


def _swapped(terms: dict[str, Any]) -> dict[str, Any]:
    return {name: value[::-1] if name in ("examples", "batches") else value for name, value in terms.items()}  # fmt: skip  # noqa: E501


def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path, consortium: Consortium) -> None:
    data = consortium.to_json()
    for changed, reason in (
        ({"version": 2}, "version"),
        ({"partners": data["partners"][:1]}, "records"),
        ({"partners": [data["partners"][0]] * 2}, "records|same"),
        ({"partners": 5}, "not a consortium"),
        ({"terms": {**data["terms"], "engine": "plain", "colluders": 0}}, "protects nobody"),
        ({"timeout": float("nan")}, "timeout"),
        ({"model": "pickle"}, "model"),
        ({"name": ""}, "name"),
    ):
        with pytest.raises(SordinoError, match=reason):
            Consortium.from_json({**data, **changed})
    path = tmp_path / "broken.json"
    path.write_text("{" * 10_000)
    with pytest.raises(SordinoError, match="not JSON"):
        Consortium.load(path)
    with pytest.raises(SordinoError, match="cannot read"):
        PartyCard.load(tmp_path / "nothing.json")


def test_signatures_hold_for_one_party_and_one_file(tmp_path: Path, consortium: Consortium) -> None:
    north = (tmp_path / "north" / KEY).read_text()
    signature = consortium.sign(north)
    consortium.verify("north", signature)
    other = Consortium("another", consortium.partners, consortium.terms, MODEL)
    for name, file, said in (
        ("south", consortium, signature),
        ("north", other, signature),
        ("north", consortium, signature[:-2]),
        ("north", consortium, "not hex"),
        ("north", consortium, None),
    ):
        with pytest.raises(SordinoError, match="has not signed"):
            file.verify(name, said)
    with pytest.raises(SordinoError, match="no party"):
        consortium.verify("west", signature)


def test_a_party_signs_what_fits_its_own_card_only(tmp_path: Path, consortium: Consortium) -> None:
    site = PartySite.load(tmp_path / "north")
    with pytest.raises(SordinoError, match="signed no consortium file"):
        _ = site.consortium
    site.sign(consortium, allow=ALLOW)
    assert PartySite.load(tmp_path / "north").consortium.digest == consortium.digest
    card = json.loads((tmp_path / "south" / CARD).read_text())
    (tmp_path / "south" / CARD).write_text(json.dumps({**card, "examples": 81}))
    with pytest.raises(SordinoError, match="another certificate, key, size or address"):
        PartySite.load(tmp_path / "south").sign(consortium, allow=ALLOW)
    stranger = create_party(tmp_path / "west", "west", examples=3)
    assert stranger.name == "west"
    with pytest.raises(SordinoError, match="no party 'west'"):
        PartySite.load(tmp_path / "west").sign(consortium, allow=ALLOW)
    unknown = Consortium("study", consortium.partners, consortium.terms, {"kind": "own", "name": "a.b:c"})  # fmt: skip  # noqa: E501
    with pytest.raises(SordinoError, match=r"--allow-model a\.b:c"):
        PartySite.load(tmp_path / "north").sign(unknown)
    with pytest.raises(SordinoError, match="no model"):
        PartySite.load(tmp_path / "north").sign(unknown, allow=["a.b:c"])


def test_a_changed_file_is_found_before_anything_is_sent(
    tmp_path: Path, consortium: Consortium
) -> None:
    site = PartySite.load(tmp_path / "north")
    site.sign(consortium, allow=ALLOW)
    changed = Consortium("another", consortium.partners, consortium.terms, MODEL)
    changed.save(tmp_path / "north" / "consortium.json")
    with pytest.raises(SordinoError, match="has not signed"):
        _ = PartySite.load(tmp_path / "north").consortium
