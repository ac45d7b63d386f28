r"""The engine `mask`: vectors under pads that cancel, each with its party's own share of the noise.

    engine = MaskSum("south", private_key, roster, star, colluders=1, largest=2**40, claim=claim)
    total = engine.noised_sum(values, variance, turn)

One turn, with m parties of which t may collude:

1. Each party adds to its vector an exact discrete Gaussian share of variance ``ceil(S / (m-t))`` and its
   pads with all others (`Pads`), bound to the roster with its session, the turn, and the terms (length,
   variance, t). It sends that to the first party, which adds everything up modulo 2^64: pads cancel.
2. The first party sends the sum to all.
3. Each party sends to each other a code (HMAC-SHA256 under a key that only the two have) of the sum it
   got. They travel through the first party, which can neither read keys out of them nor make them. Only
   when all codes agree is the sum returned.

**What is protected.** Up to t parties that follow the protocol and put together all that they saw, the
first party among them or not, learn the others' sum with noise of variance at least S, and nothing
else: without the honest parties' keys their padded vectors are uniform but for their sum. Parties that
deviate learn no more than that from a turn: every honest vector leaves its owner once per turn, with
its share in it and under pads that only cancel against all other honest vectors of the same turn and
terms; a share that a dishonest party leaves out is one of those that it could have subtracted. What
honest parties are protected from is stated for passive parties all the same (`TrustAssumption.active` is
False), because the *sum* is not protected: any party may lie about its vector, the first one may shift
the sum, and anybody can stop a turn.

**What the codes give.** Two honest parties never *return* different sums for one turn, whatever the first
party does: without them it could let models drift apart unnoticed. They do not say that the sum is right,
and do not make the end simultaneous: a party may have returned the sum when another one gives up. That one
asks for the same turn again, with the same vector; or, with a nonce, the others give it the sum when they
meet again (`parties/_party.py`), which is no secret among them.

**Turns.** Noise is derived from the party's secret, the turn with its terms, and the vector, so the
same call sends the same bytes again and tells nobody more. A turn with another vector would put two
vectors under one pad; before anything is sent, `claim` therefore records the turn on disk, and refuses
it for another vector, and every earlier turn for any. A turn that fails after that counts as released.
Whoever puts an old copy of that file back, or loses it and goes on, takes this protection away.

A party that is missing or late ends the turn for all, with the reason, and closes the connections.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, one_line, require_count
from sordino.parts.mechanisms import MOST_VARIANCE, ChaCha20Generator, discrete_gaussian
from sordino.together._certificates import Roster
from sordino.together.secure._base import (
    Integers,
    TrustAssumption,
    published_variance,
    require_fit,
    share_variance,
)
from sordino.together.secure._transport import StarTransport

_VECTOR, _SUM, _CODES, _ALL_CODES = 1, 2, 3, 4
_TERMS = struct.Struct(">QQI")
_CODE_BYTES = 32
_KEY_BYTES = 32
_INFO = b"sordino pad 1/"
_PAIR = b"sordino pair 1/"

Claim = Callable[[int, bytes], None]


class MaskSum:
    """One party's end of the engine.

    Args:
      name: of this party.
      private_key: X25519, that belongs to the roster's public key; keeps pads and noise secret.
      roster: who takes part, the same at every party.
      transport: joined.
      colluders: t, from 1 (every party knows its own share) to m - 1.
      largest: bound on every entry of every party's vector; entries beyond it are refused.
      claim: called with the turn and a digest of the call before anything is sent; must record both
        durably, and raise for a turn that was claimed with another digest or is over, as a
        journal of the caller's does.
      nonce: what the parties have agreed on for these connections, each with fresh randomness in it: then
        no pad is ever used twice, whatever became of the record, and noise is made of fresh randomness. The
        same at every party. A turn that fails is then never repeated, and `claim` must see to that.
    """

    def __init__(
        self,
        name: str,
        private_key: bytes,
        roster: Roster,
        transport: StarTransport,
        *,
        colluders: int,
        largest: int,
        claim: Claim,
        nonce: bytes = b"",
    ) -> None:
        m = len(roster.members)
        if not 1 <= require_count("colluders", colluders) < m:
            raise SordinoError(
                f"colluders must be from 1 (each party can subtract its own share) to {m - 1}, got "
                f"{colluders}"
            )
        if (transport.name, transport.roster.digest) != (name, roster.digest):
            raise SordinoError("the connections were made by another party or for another roster")
        self._name, self._roster, self._star = name, roster, transport
        self._pads = Pads(name, private_key, roster.public_keys)
        self._secret = hmac.digest(private_key, b"sordino mask noise 1", "sha256")
        self._largest = require_count("largest", largest, minimum=0)
        self._claim = claim
        self._nonce, self._once = hashlib.sha256(nonce).digest(), bool(nonce)
        self._assumption = TrustAssumption("mask", m, colluders, m, colluders, False, "shares")

    @property
    def assumption(self) -> TrustAssumption:
        return self._assumption

    @property
    def bytes_sent(self) -> int:
        return self._star.bytes_sent

    def close(self) -> None:
        self._star.close()

    def noised_sum(self, values: Integers, variance: int, turn: int) -> Integers:
        """See `NoisedSum.noised_sum`."""
        try:
            share = self._checked(values, variance, turn)
            terms = _TERMS.pack(len(values), variance, self._assumption.colluders)
            context = self._context(turn, terms)
            mine = values.astype("<i8").tobytes()
            # Keyed, so that whoever finds the record cannot try vectors.
            call = hmac.digest(self._secret, b"call" + context + mine, "sha256")
            self._claim(turn, call)
        except BaseException:
            # The others need not wait; why is not for them, it may depend on the vector.
            self._star.give_up("it cannot take part in this turn, and has sent nothing")
            raise
        noise_key = hmac.digest(self._secret, b"noise" + call, "sha256")
        if self._once:
            # Nothing is ever sent again, so the noise need not be a function of what is kept.
            noise_key = secrets.token_bytes(32)
        noised = values + discrete_gaussian(share, len(values), ChaCha20Generator(noise_key))
        padded = self._pads.padded(noised, self._roster.names, context)
        deadline = self._star.deadline()
        try:
            total = self._exchanged(padded, terms, turn, deadline)
            self._agree(total, context, turn, deadline)
        except BaseException as error:
            reason = one_line(error, 300) if isinstance(error, SordinoError) else "it was stopped"
            self._star.give_up(f"turn {turn}: {reason}")
            if isinstance(error, SordinoError):
                raise SordinoError(
                    f"turn {turn} failed, and counts as released: {one_line(error, 400)}"
                ) from None
            raise
        return total

    def _checked(self, values: Integers, variance: int, turn: int) -> int:
        """The variance of this party's share, if the call makes sense."""
        require_count("turn", turn, minimum=0)
        require_count("variance", variance)
        if not (isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1):
            raise SordinoError("values must be an int64 array (d,)")
        if not len(values):
            raise SordinoError("there is nothing to sum: values is empty")
        # Not by abs, which leaves the least int64 negative.
        if int(values.max()) > self._largest or int(values.min()) < -self._largest:
            raise SordinoError(
                f"values has an entry beyond {self._largest}, which the run was not planned for"
            )
        share = share_variance(variance, self._assumption)
        if share > MOST_VARIANCE:
            raise SordinoError(f"shares are drawn up to a variance of 2^48, got {share}")
        require_fit(
            largest=self._largest,
            parties=self._assumption.parties,
            variance=published_variance(variance, self._assumption),
            dimension=len(values),
        )
        return share

    def _context(self, turn: int, terms: bytes) -> bytes:
        """Names the turn: roster (with session and cohort), turn and terms, each of fixed length."""
        place = self._roster.digest + self._nonce + turn.to_bytes(8, "big")
        return b"sordino mask 2" + place + terms

    def _exchanged(self, padded: Integers, terms: bytes, turn: int, deadline: float) -> Integers:
        """Steps 1 and 2: the sum, as the first party says."""
        star, hub, size = self._star, self._roster.hub, 8 * len(padded)
        if not star.is_hub:
            body = terms + padded.astype("<i8").tobytes()
            star.send(hub, kind=_VECTOR, turn=turn, body=body, deadline=deadline)
            said = star.receive(hub, kind=_SUM, turn=turn, longest=size, deadline=deadline)
            if len(said) != size:
                raise SordinoError(f"{hub!r} sent a sum of another length")
            return np.frombuffer(said, "<i8").astype(np.int64)
        # Room for longer ones: a party with other terms is to be told so.
        result = star.receive_all(
            star.peers, kind=_VECTOR, turn=turn, longest=4 * size + 4096, deadline=deadline
        )
        total = padded.view(np.uint64).copy()
        for name, body in result.items():
            if body[: _TERMS.size] != terms:
                raise SordinoError(
                    f"{name!r} wants {_described(body)}, and {hub!r} {_described(terms)}"
                )
            if len(body) != _TERMS.size + size:
                raise SordinoError(f"{name!r} sent a vector of another length than it says")
            total += np.frombuffer(body, "<u8", offset=_TERMS.size)
        said = total.astype("<u8").tobytes()
        for name in star.peers:
            star.send(name, kind=_SUM, turn=turn, body=said, deadline=deadline)
        return total.view(np.int64)

    def _agree(self, total: Integers, context: bytes, turn: int, deadline: float) -> None:
        """Step 3: an error unless all others have the same sum."""
        star, names = self._star, self._roster.names
        digest = hashlib.sha256(total.astype("<i8").tobytes()).digest()
        others = [name for name in names if name != self._name]
        keys = {name: self._pads.pair_key(name, context) for name in others}
        mine = {name: _code(keys[name], self._name, digest) for name in others}
        size = _CODE_BYTES * len(others)
        if star.is_hub:
            result = star.receive_all(
                star.peers, kind=_CODES, turn=turn, longest=size, deadline=deadline
            )
            codes = {self._name: mine}
            for name, body in result.items():
                if len(body) != size:
                    raise SordinoError(f"{name!r} sent codes of another length")
                receivers = [other for other in names if other != name]
                pieces = [body[i : i + _CODE_BYTES] for i in range(0, size, _CODE_BYTES)]
                codes[name] = dict(zip(receivers, pieces, strict=True))
            for name in star.peers:
                body = b"".join(codes[other][name] for other in names if other != name)
                star.send(name, kind=_ALL_CODES, turn=turn, body=body, deadline=deadline)
            got = {name: codes[name][self._name] for name in others}
        else:
            hub = self._roster.hub
            body = b"".join(mine[name] for name in others)
            star.send(hub, kind=_CODES, turn=turn, body=body, deadline=deadline)
            body = star.receive(hub, kind=_ALL_CODES, turn=turn, longest=size, deadline=deadline)
            if len(body) != size:
                raise SordinoError(f"{hub!r} sent codes of another length")
            pieces = [body[i : i + _CODE_BYTES] for i in range(0, size, _CODE_BYTES)]
            got = dict(zip(others, pieces, strict=True))
        for name in others:
            if not hmac.compare_digest(got[name], _code(keys[name], name, digest)):
                raise SordinoError(f"{name!r} does not confirm the sum that {self._name!r} got")


def _code(key: bytes, sender: str, digest: bytes) -> bytes:
    return hmac.digest(key, sender.encode() + b"\0" + digest, "sha256")


def _described(terms: bytes) -> str:
    if len(terms) < _TERMS.size:
        return "something that cannot be read"
    length, variance, colluders = _TERMS.unpack(terms[: _TERMS.size])
    return f"{length} numbers with variance {variance} against {colluders} colluders"


def new_private_key() -> bytes:
    """A private X25519 key from the operating system's entropy."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key that belongs to a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


class Pads:
    """One member's pads with all others: each pair shares one, which one adds and the other subtracts.

    Whoever sees all padded vectors learns their sum and nothing else, as long as two members keep their
    keys to themselves: the vectors are uniform modulo 2^64 but for that sum. Pair secrets come from X25519
    between keys that all members know beforehand (so nobody can be impersonated), pad keys from HKDF-SHA256
    over the pair's secret and a *context*, words from ChaCha20; all from `cryptography`. A pad hides one
    vector: a context must never be used for two different ones, and must name everything that may differ.

    Passive security. A member who lies about its vector changes the sum; one that does not answer leaves
    the others' pads in it, so that a round with a missing member is worthless and has to be given up.

    Args:
      name: of this member.
      private: its private key.
      members: every member's public key, this one's too.
    """

    def __init__(self, name: str, private: bytes, members: Mapping[str, bytes]) -> None:
        if name not in members or public_key(private) != members[name]:
            raise SordinoError(f"the private key of {name!r} does not belong to its public key")
        if len(set(members.values())) != len(members):
            raise SordinoError("two members have the same public key")
        self._name = name
        self._members = dict(members)
        self._private = private
        self._secrets: dict[str, bytes] = {}

    def padded(
        self, values: NDArray[np.int64], cohort: Iterable[str], context: bytes
    ) -> NDArray[np.int64]:
        """`values` plus this member's pads with the rest of the cohort, modulo 2^64.

        Args:
          values: int64 (d,).
          cohort: everybody whose vector goes into the sum, this member too.
          context: names the vector; the same for the whole cohort, different for every sum.
        """
        names = sorted(set(cohort))
        if self._name not in names or len(names) < 2:
            raise SordinoError("pads need a cohort of at least two, this member among them")
        if values.dtype != np.int64 or values.ndim != 1:
            raise SordinoError("pads hide vectors of int64 only")
        total = values.view(np.uint64).copy()
        for other in names:
            if other == self._name:
                continue
            words = ChaCha20Generator(self._pad_key(other, context)).words(len(values))
            total = total + words if self._name < other else total - words
        return total.view(np.int64)

    def pair_key(self, other: str, context: bytes) -> bytes:
        """32 bytes that this member and one other have, for codes that prove who wrote something."""
        return self._pad_key(other, context, _PAIR)

    def _pad_key(self, other: str, context: bytes, use: bytes = _INFO) -> bytes:
        pair = "/".join(sorted((self._name, other))).encode()
        info = use + len(pair).to_bytes(4, "little") + pair + context
        return HKDF(SHA256(), _KEY_BYTES, None, info).derive(self._secret(other))

    def _secret(self, other: str) -> bytes:
        if other not in self._members:
            raise SordinoError(f"there is no member {other!r}")
        if other not in self._secrets:
            mine = X25519PrivateKey.from_private_bytes(self._private)
            theirs = X25519PublicKey.from_public_bytes(self._members[other])
            try:
                self._secrets[other] = mine.exchange(theirs)
            except ValueError:
                raise SordinoError(f"the public key of {other!r} is not a good one") from None
        return self._secrets[other]
