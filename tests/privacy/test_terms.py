"""Words as enums: strings to whoever takes or writes strings, and one factor."""

from __future__ import annotations

import json

import pytest

import sordino
from sordino import Adjacency, NoiseKind, SordinoError, Unit


def test_members_are_their_plain_values() -> None:
    assert [a.value for a in Adjacency] == ["zero-out", "add-remove", "replace-one"]
    assert [u.value for u in Unit] == ["example", "user", "client", "person"]
    assert [k.value for k in NoiseKind] == ["gaussian", "discrete"]
    for member in (*Adjacency, *Unit, *NoiseKind):
        assert member == member.value
        assert f"{member} {member!r}" == f"{member.value} {member.value!r}"
        assert json.dumps({member: member}) == json.dumps({member.value: member.value})
        assert type(str(member)) is str


def test_the_factor_is_two_where_one_takes_anothers_place() -> None:
    assert [a.factor for a in Adjacency] == [1, 1, 2]


def test_unknown_words_get_the_nearest() -> None:
    with pytest.raises(SordinoError, match="adjacency 'replace' is not known; did you mean"):
        Adjacency("replace")


def test_plans_take_members_and_hold_plain_values() -> None:
    facts = {"examples": 60, "batch_size": 10, "epochs": 1, "epsilon": 2.0, "delta": 1e-3}
    plain = sordino.plan("dp-memf", adjacency="replace-one", unit="user", noise="discrete", **facts)
    other = sordino.plan(
        "dp-memf",
        adjacency=Adjacency.REPLACE_ONE,
        unit=Unit.USER,
        noise=NoiseKind.DISCRETE,
        **facts,
    )
    assert other == plain
    assert json.dumps(other.to_json()) == json.dumps(plain.to_json())
    assert type(other.guarantee.adjacency) is type(other.guarantee.unit) is str
    with pytest.raises(SordinoError, match="discrete noise is for units of one row each"):
        sordino.plan("dp-memf", unit=Unit.PERSON, noise="discrete", **facts)
