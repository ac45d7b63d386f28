"""A party's folder: its keys, the consortium file it has signed, and its journal.

    north/
      party.json                       public: give it to whoever writes the consortium file
      party.crt  party.key  pad.key    this party's certificate and secrets
      consortium.json  signature       what was agreed on, and that this party has signed it
      journal.db  signatures.json      the run; the others' signatures, as they showed them
      model.npz                        at the end

What batches are drawn from, and how far the party has come, is sealed in the user's key folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import SordinoError
from sordino._base.files import new_folder, remove_leftovers, require_private, write_atomically
from sordino._base.keystore import KeyStore
from sordino._base.types import Json, PyTree
from sordino._version import code_digest
from sordino.engine import LedgerAccount, Source
from sordino.engine.ledger import Ledger
from sordino.together._callbacks import Callbacks
from sordino.together._certificates import RosterEntry, new_certificate
from sordino.together.parties._consortium import Consortium, PartyCard
from sordino.together.parties._journal import TurnJournal
from sordino.together.parties._learner import Learner
from sordino.together.parties._party import Meeting, PartyResult, engine_of, run_party
from sordino.together.secure._base import SecureSum
from sordino.together.secure._mask import new_private_key, public_key
from sordino.together.secure._transport import StarTransport
from sordino.together.sites._models import ModelSpec, model_from_json, named_code, require_allowed

CARD, CONSORTIUM, SIGNATURE = "party.json", "consortium.json", "signature"
CERTIFICATE, KEY, PAD_KEY = "party.crt", "party.key", "pad.key"
JOURNAL, SIGNATURES, MODEL = "journal.db", "signatures.json", "model.npz"


def create_party(
    folder: Path, name: str, *, examples: int, host: str = "127.0.0.1", port: int = 7000
) -> PartyCard:
    """Make a new party's folder with its keys; its card. All of it or nothing."""
    certificate, key = new_certificate(name)
    private = new_private_key()
    card = PartyCard(RosterEntry(name, public_key(private), certificate), examples, host, port)
    with new_folder(Path(folder)) as staging:
        write_atomically(staging / KEY, key, mode=0o600)
        write_atomically(staging / PAD_KEY, private, mode=0o600)
        write_atomically(staging / CERTIFICATE, certificate)
        card.save(staging / CARD)
    return card


@dataclass(frozen=True)
class PartySite:
    """A party's folder as it was found."""

    folder: Path
    card: PartyCard

    @classmethod
    def load(cls, folder: Path) -> PartySite:
        folder = Path(folder)
        if not (folder / CARD).exists():
            raise SordinoError(
                f"there is no party in {str(folder)!r}; make one with `sordino party init`"
            )
        remove_leftovers(folder)
        return cls(folder, PartyCard.load(folder / CARD))

    @property
    def name(self) -> str:
        return self.card.name

    @cached_property
    def consortium(self) -> Consortium:
        """The file that this party has signed."""
        path = self.folder / CONSORTIUM
        if not path.exists():
            raise SordinoError(
                f"{self.name!r} has signed no consortium file yet: `sordino party sign "
                f"{self.folder} FILE`"
            )
        result = Consortium.load(path)
        self._check(result)
        result.verify(self.name, self.signature)
        return result

    @property
    def signature(self) -> str:
        return self._text(SIGNATURE).strip()

    def _check(self, consortium: Consortium) -> None:
        """Refuse a file that says something else about this party than its own card."""
        place = consortium.place(self.name)
        if consortium.partners[place] != self.card:
            raise SordinoError(
                f"the consortium file has another certificate, key, size or address of {self.name!r} "
                f"than {str(self.folder / CARD)!r}"
            )

    def may_sign(self, consortium: Consortium, *, allow: Collection[str] = ()) -> None:
        """An error where this party cannot agree to that file. Nothing that it names is imported.

        Args:
          allow: ``module:name`` of models of one's own that this party has chosen to run.
        """
        if (self.folder / JOURNAL).exists():
            raise SordinoError(
                f"{self.name!r} has begun a run already; make a new folder for another one"
            )
        self._check(consortium)
        require_allowed(consortium.model, allow)

    def sign(self, consortium: Consortium, *, allow: Collection[str] = ()) -> None:
        """Agree: keep the file, and this party's signature of it; `allow` as in `may_sign`."""
        self.may_sign(consortium, allow=allow)
        model_from_json(consortium.model, allow)  # what cannot be trained here is not agreed to
        require_private(self.folder / KEY)
        signature = consortium.sign(self._text(KEY))
        consortium.save(self.folder / CONSORTIUM)
        write_atomically(self.folder / SIGNATURE, signature + "\n")
        self.__dict__.pop("consortium", None)

    @cached_property
    def model(self) -> ModelSpec:
        # This party has signed it, and could not without having allowed the code that it names.
        name = named_code(self.consortium.model)
        return model_from_json(self.consortium.model, () if name is None else (name,))

    def journal(self, store: KeyStore | None = None) -> TurnJournal:
        """This party's journal, new or as it was left."""
        return TurnJournal(self.folder / JOURNAL, self.consortium.digest, self.name, store=store)

    def run(
        self,
        data: tuple[PyTree, ...],
        *,
        store: KeyStore | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        known_by: PyTree = None,
        join_timeout: float | None = None,
        callbacks: Callbacks | None = None,
        watch: Callable[[str, bytes], None] | None = None,
    ) -> PartyResult:
        """Take part until the end; started again, go on.

        Args:
          data: this party's arrays.
          store: where the seal is kept.
          ledger, dataset: what pays for the run, before the first turn.
          known_by: what the ledger knows the data set by, if not by the arrays: the table they are from.
          join_timeout: seconds to wait for the others at first.
          callbacks: are told about progress.
          watch: sees what is received, for tests.
        """
        for name in (KEY, PAD_KEY):
            require_private(self.folder / name)
        consortium, model = self.consortium, self.model
        place = consortium.place(self.name)
        consortium.terms.verify()
        known = Source(
            data if known_by is None else known_by, rows=consortium.terms.examples[place]
        )
        account = LedgerAccount.of(ledger, dataset, known)
        journal = self.journal(store)
        try:
            learner = Learner(
                consortium.terms, place, model.loss, model.params, data, key=journal.key
            )
            source = model.source or ""
            journal.bind(
                code_digest().encode(),
                _versions().encode(),
                json.dumps(consortium.model, sort_keys=True).encode(),
                source.encode(),
                learner.digest().encode(),
                *(part for leaf in jax.tree.leaves(data) for part in _bytes_of(leaf)),
            )
            facts = {
                **consortium.facts(self.signature),
                "start": learner.digest(),
                "source": source,
            }
            # What the journal is held to is everything that decides this party's part of the sums.
            run, identity = journal.key.identity, {"party": journal.fingerprint}
            if account is not None and run not in {r.run for r in account.ledger.reservations()}:
                # Before the others have come in vain; charged is it when they are here.
                account.ledger.check(account.dataset, consortium.terms)
            private = (self.folder / PAD_KEY).read_bytes()
            opened = engine_of(
                consortium,
                self.name,
                private_key=private,
                certificate=self.folder / CERTIFICATE,
                key=self.folder / KEY,
            )

            def charged(
                star: StarTransport, session: Meeting, claim: Callable[[int, bytes], None]
            ) -> SecureSum:
                if account is not None:
                    try:
                        account.charge(consortium.terms, run, identity)
                    except SordinoError:
                        # What its ledger says of its data sets is not for the others.
                        star.give_up("its own budget does not pay for this run")
                        raise
                return opened(star, session, claim)

            try:
                finished = run_party(
                    self.name,
                    learner=learner,
                    journal=journal,
                    join=lambda: StarTransport.join(
                        consortium.roster,
                        self.name,
                        self.folder / CERTIFICATE,
                        self.folder / KEY,
                        timeout=consortium.timeout,
                        join_timeout=join_timeout,
                        watch=watch,
                    ),
                    private_key=private,
                    facts=facts,
                    open_engine=charged,
                    check=self._keep_signature,
                    callbacks=callbacks,
                )
            finally:
                # Also where the others were gone before they could be asked for theirs.
                if learner.finished:
                    write_atomically(self.folder / MODEL, self.saved(learner.params))
                    if account is not None:
                        account.charge(consortium.terms, run, identity)
                        account.close(run)
        finally:
            journal.close()
        return finished

    def saved(self, params: PyTree) -> bytes:
        """The trained model as a file."""
        leaves = [np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(params)]
        return self.model.saved(np.concatenate(leaves))[1]

    def _keep_signature(self, name: str, facts: Json) -> None:
        """Refuse a party that has not signed the same file; keep what it has shown."""
        self.consortium.verify(name, facts.get("signature"))
        path = self.folder / SIGNATURES
        known = json.loads(path.read_text()) if path.exists() else {}
        if name not in known:
            known[name] = facts["signature"]
            write_atomically(path, json.dumps(known, indent=1) + "\n")

    def _text(self, name: str) -> str:
        try:
            return (self.folder / name).read_text("utf-8")
        except OSError as error:
            raise SordinoError(
                f"cannot read {str(self.folder / name)!r}: {error.strerror or error}"
            ) from None


def _versions() -> str:
    """Of what batches and sums are computed with: another version may draw or round otherwise."""
    return "/".join(version(name) for name in ("numpy", "jax", "jaxlib"))


def _bytes_of(leaf: ArrayLike) -> tuple[bytes, bytes]:
    array = np.ascontiguousarray(leaf)
    return f"{array.dtype.str}{array.shape}".encode(), array.tobytes()
