"""``sordino federated``: training over many clients that keep their data, with a server nobody trusts."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import models
from sordino._base.errors import SordinoError, require_choice, require_count
from sordino._base.files import write_atomically
from sordino._base.types import PyTree
from sordino.app.cli._console import INTERRUPTED, err, out, progress_bar, say, show_guarantee
from sordino.app.cli._train import today
from sordino.together import federated, sites

if TYPE_CHECKING:
    from sordino.together.federated import Agreement, DurableClient, DurableServer, RoundRecord
    from sordino.together.sites import ModelSpec

app = typer.Typer(
    no_args_is_help=True,
    help="Train over many clients that keep their data; noise that each adds, and later takes back.",
)

_Folder = Annotated[Path, typer.Argument(help="The run's folder.")]
_Test = Annotated[
    Path | None, typer.Option(help="PUBLIC test data; the only data scores are computed on.")
]
_AllowModel = Annotated[
    list[str] | None,
    typer.Option(
        envvar="SORDINO_ALLOW_MODEL",
        help="Code of this machine that model.json may name, as module:name.",
    ),
]
_Every = Annotated[int, typer.Option(help="Rounds between two scores.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the run.")],
    *,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="What is public about the tables: bounds, categories, classes (JSON, TOML)."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead: a model of your own, as module:name.")
    ] = None,
    clients: Annotated[str, typer.Option(help="How many clients, or their names with commas.")],
    examples: Annotated[int, typer.Option(help="The least number of examples a client has.")],
    rounds: Annotated[int, typer.Option(help="How often the model moves.")],
    per_round: Annotated[
        int | None, typer.Option(help="Clients in a round; all of them unless given.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Each example's budget.")],
    delta: Annotated[float, typer.Option(help="Well below 1 over a client's examples.")] = 1e-5,
    trust: Annotated[str, typer.Option(help="untrusted, secure-sum or trusted.")] = "untrusted",
    schedule: Annotated[str | None, typer.Option(help="leaky, uniform, paper or fresh.")] = None,
    algorithm: Annotated[
        str, typer.Option(help="dp-mu2, noisy-sgd or lowy-razaviyayn.")
    ] = "dp-mu2",
    unit: Annotated[str, typer.Option(help="What is protected: example or client.")] = "example",
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    clip: Annotated[float, typer.Option(help="Largest norm of one example's correction.")] = 1.0,
    batch: Annotated[
        int | None, typer.Option(help="Examples in a message; so that all are used unless given.")
    ] = None,
    uses: Annotated[int, typer.Option(help="How often an example may be used.")] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the default.")] = None,
    radius: Annotated[
        float | None, typer.Option(help="Of the ball that the model stays in.")
    ] = None,
    extra: Annotated[int, typer.Option(help="Clients asked beyond the needed ones.")] = 0,
    spare: Annotated[
        float, typer.Option(help="Messages per message that may come to nothing.")
    ] = 0.1,
    colluders: Annotated[
        int, typer.Option(help="Of a cohort, who may work with the server (secure-sum).")
    ] = 0,
    host: Annotated[str, typer.Option(help="Where the server will listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port.")] = 8000,
    local: Annotated[
        bool, typer.Option("--local", help="For `simulate` only: no certificates, no Flower.")
    ] = False,
) -> None:
    """Make a run's agreement, and a folder for the server and for each client."""
    for name, value in (("uses", uses), ("examples", examples), ("rounds", rounds)):
        require_count(name, value)
    if not 0 <= spare <= 100:
        raise SordinoError(f"spare must be between 0 and 100 messages per message, got {spare:g}")
    if not 1 <= port <= 65535:
        raise SordinoError(f"port must be between 1 and 65535, got {port}")
    if (schema is None) == (model is None):
        raise SordinoError("give --schema for tables, or --model for a model of your own")
    built = (
        sites.table_model(models.Schema.load(schema))
        if schema is not None
        else sites.own_model(str(model))
    )
    names: int | list[str] = (
        int(clients) if clients.isdecimal() else [one.strip() for one in clients.split(",")]
    )
    count = require_count("clients", names) if isinstance(names, int) else len(names)
    share = min(1.0, ((per_round or count) + extra) / max(1, count))
    if batch is None:
        batch = max(1, examples // max(1, round(rounds * share / uses)))
    private, keys = sites.pad_keys(count) if trust == "secure-sum" else ([], ())
    agreement = federated.agree(
        clients=names,
        parameters=built.parameters,
        rounds=rounds,
        per_round=per_round,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        batch=batch,
        uses=uses,
        examples=examples,
        algorithm=algorithm,
        trust=trust,
        schedule=schedule,
        unit=unit,
        adjacency=adjacency,
        learning_rate=learning_rate,
        radius=radius,
        smoothness=built.smoothness,
        extra=extra,
        spare=max(spare, 1.5 * extra / (per_round or count)),
        colluders=colluders,
        keys=keys,
        name=folder.name,
    )
    sites.create(
        folder,
        agreement,
        built,
        host=host,
        port=port,
        private=dict(zip(agreement.clients, private, strict=True)) if private else None,
        deployed=not local,
    )
    show_agreement(agreement)
    show_guarantee(agreement.guarantee.sentence())
    console = out()
    console.print(f"wrote {folder}", markup=False)
    if local:
        console.print(f"next: sordino federated simulate {folder} --data TABLE", markup=False)
        return
    console.print(
        f"next: give each client its folder ({folder / 'clients'}/NAME), and nobody else; then\n"
        f"      sordino federated server {folder / 'server'}\n"
        "      sordino federated client NAME --data TABLE      at each client",
        markup=False,
    )


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder.")],
    *,
    allow_model: _AllowModel = None,
    test_file: _Test = None,
    every: _Every = 1,
) -> None:
    """Run the server until the rounds are done. Started again, it goes on where it was."""
    from sordino.together.federated.flower import serve

    _quiet_flower()

    require_count("every", every)
    site = sites.ServerSite.load(folder, allow=allow_model or ())
    evaluate = None if test_file is None else site.model.evaluator(site.model.load(test_file))
    with _resumable(), _watched(site.agreement) as callbacks:
        coordinator = site.open(evaluate=evaluate, every=every, callbacks=callbacks)
        try:
            show_agreement(site.agreement)
            if coordinator.state.round > 1:
                out().print(f"going on with round {coordinator.state.round:,}")
            settings = site.settings
            if not coordinator.finished:
                serve(
                    coordinator,
                    clients=site.nodes(),
                    certificate=folder / "server.crt",
                    key=folder / "server.key",
                    host=settings.host,
                    port=settings.port,
                    timeout=settings.timeout,
                )
            _finish(folder, coordinator, site.model, site.agreement)
        finally:
            coordinator.close()


@app.command()
def client(
    folder: Annotated[Path, typer.Argument(help="This client's folder.")],
    *,
    data: Annotated[
        Path | None, typer.Option(help="This client's table; or named in its client.toml.")
    ] = None,
    allow_model: _AllowModel = None,
    patience: Annotated[
        float | None, typer.Option(help="Seconds to wait for a server; for ever unless given.")
    ] = None,
) -> None:
    """Answer a server's requests until stopped. Started again, it goes on with the same counters."""
    from sordino.together.federated.flower import join

    _quiet_flower()

    site = sites.ClientSite.load(folder, allow=allow_model or ())
    endpoint = site.open(site.part(data))
    console = out()
    try:
        show_agreement(site.agreement)
        console.print(
            f"{site.settings.name}: {endpoint.client.data.examples:,} examples, "
            f"{endpoint.state.index:,} messages sent, {_spent(endpoint.spent, site.agreement)}",
            markup=False,
        )
        with _resumable():
            join(
                ReportingEndpoint(endpoint, site.agreement),
                name=site.settings.name,
                key=site.node_key,
                server=site.settings.server,
                authority=folder / sites.AUTHORITY,
                patience=patience,
            )
        console.print(
            f"{site.settings.name}: {endpoint.state.index:,} messages sent, "
            f"{_spent(endpoint.spent, site.agreement)}",
            markup=False,
        )
    finally:
        endpoint.close()


@app.command()
def simulate(
    folder: _Folder,
    *,
    data: Annotated[
        list[Path], typer.Option(help="One table to deal out, or one for each client in order.")
    ],
    skew: Annotated[
        float | None, typer.Option(help="How unequal labels are dealt out; small is very.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="direct; flower: through its messages, in this process; ray: its simulation."
        ),
    ] = "direct",
    allow_model: _AllowModel = None,
    test_file: _Test = None,
    every: _Every = 1,
    insecure_seed: Annotated[
        int | None, typer.Option(help="Makes the noise reproducible: NOT private.")
    ] = None,
) -> None:
    """Run server and clients in this process: to try out an agreement before deploying it."""
    from sordino.engine import compilation_cache

    require_choice("engine", engine, sites.ENGINES)
    require_count("every", every)
    if insecure_seed is not None:
        require_count("insecure_seed", insecure_seed, minimum=0)
    if engine == "ray" and insecure_seed is not None:
        raise SordinoError("--engine ray keeps real journals and takes no seed")

    agreement = federated.Agreement.load(folder / sites.AGREEMENT)
    model = sites.load_model_description(folder / sites.MODEL_DESCRIPTION, allow_model or ())
    count = len(agreement.clients)
    if len(data) not in (1, count):
        raise SordinoError(
            f"give one table, or one for each of the {count:,} clients; got {len(data):,}"
        )
    loaded = [model.load(path) for path in data]
    rows: Sequence[tuple[PyTree, ...]] = loaded
    if len(data) == 1:
        if len(loaded[0]) != 2:
            raise SordinoError("this model's data cannot be dealt out; give a file for each client")
        X, y = loaded[0]
        rows = federated.split(X, y, count, seed=insecure_seed or 0, skew=skew)
    private = _pad_keys(folder, agreement)
    # A model of one's own may close over data, which a compiled program would hold.
    kept = compilation_cache(wanted=(model.description or {}).get("kind") == "table")
    evaluate = None if test_file is None else model.evaluator(model.load(test_file))
    show_agreement(agreement)
    with kept, _watched(agreement) as callbacks:
        coordinator = sites.local_server(
            agreement,
            model,
            insecure_seed=insecure_seed,
            evaluate=evaluate,
            every=every,
            callbacks=callbacks,
        )
        if engine == "ray":
            with tempfile.TemporaryDirectory(prefix="sordino-") as scratch:
                parts = sites.local_parts(agreement, model, rows, private=private)
                sites.run_on_ray(coordinator, parts, Path(scratch))
        else:
            clients = sites.local_clients(
                agreement, model, rows, insecure_seed=insecure_seed, private=private
            )
            sites.run_here(coordinator, clients, engine=engine)
    seeded = insecure_seed is not None
    _finish(folder / "simulated", coordinator, model, agreement, is_private=not seeded)


def _quiet_flower() -> None:
    """Leave out what Flower logs about every refused connection: a client that returns is told of here."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


@contextmanager
def _resumable() -> Iterator[None]:
    """Say how to go on, if stopped from the keyboard."""
    try:
        yield
    except KeyboardInterrupt:
        err().print("stopped; the same command goes on", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


class ReportingEndpoint:
    """An endpoint that says what happens, for a client's terminal."""

    def __init__(self, endpoint: DurableClient, agreement: Agreement) -> None:
        self._endpoint, self._agreement = endpoint, agreement

    def answer(self, message: bytes) -> bytes:
        raw: bytes = self._endpoint.answer(message)
        reply = federated.message_from_bytes(raw)
        if isinstance(reply, federated.Refusal):
            why = self._endpoint.detail or reply.reason
            err().print(f"turn {reply.turn}: refused: {why}", markup=False, soft_wrap=True)
        else:
            sent = self._endpoint.state.sent
            assert sent is not None
            say(
                f"turn {sent.turn:,}, round {sent.round:,}: sent message {sent.index:,}; "
                f"{_spent(self._endpoint.spent, self._agreement)}"
            )
        return raw


def show_agreement(agreement: Agreement) -> None:
    """The run's numbers, on a few lines."""
    noise = sqrt(agreement.variance) * agreement.step
    taken = agreement.leak / 65536
    back = "which grows with each message" if agreement.growing else "the same in each message"
    say(
        f"{agreement.name}: {agreement.algorithm} over {len(agreement.clients):,} clients, "
        f"{agreement.per_round:,} of them in each of {agreement.rounds:,} rounds; {agreement.trust}\n"
        f"  {agreement.parameters:,} parameters, {agreement.batch:,} examples a message, clip "
        f"{agreement.clip:g}, noise {noise:.4g} ({back}), of which the next message takes back "
        f"{taken:.5g}"
    )


def _spent(mu: float, agreement: Agreement) -> str:
    return f"spent mu {mu:.4g} of {agreement.mu:.4g}"


@contextmanager
def _watched(agreement: Agreement) -> Iterator[federated.Callbacks]:
    """A bar with rounds, participation and score, and a line for everything unusual."""
    console = out()
    plain = not console.is_terminal
    with progress_bar("rounds", console, width=24) as bar:
        task = bar.add_task("", total=agreement.rounds)

        def done(record: RoundRecord) -> None:
            words = [f"{len(record.committed)} of {len(record.asked)} asked"]
            words += [f"{name} {value:.4g}" for name, value in record.metrics.items()]
            bar.update(task, completed=record.round, description=", ".join(words))
            step = max(1, agreement.rounds // 10)
            if plain and (record.round % step == 0 or record.round == agreement.rounds):
                console.print(
                    f"round {record.round:,} of {agreement.rounds:,}: {', '.join(words)}",
                    markup=False,
                    soft_wrap=True,
                )

        def event(text: str) -> None:
            err().print(text, markup=False, soft_wrap=True, style="dim")

        yield federated.Callbacks(round_done=done, event=event)


def _finish(
    folder: Path,
    coordinator: DurableServer,
    model: ModelSpec,
    agreement: Agreement,
    *,
    is_private: bool = True,
) -> None:
    """Say how it ended; write the model, the guarantee and the report."""
    done = coordinator.state.round - 1
    console = out()
    history = coordinator.history()
    if done < agreement.rounds:
        for name, reason in coordinator.state.out.items():
            say(f"{name} is out: {reason}")
        console.print(f"stopped after {done:,} of {agreement.rounds:,} rounds")
    if not history:
        return
    folder.mkdir(parents=True, exist_ok=True)
    name, raw = model.saved(coordinator.params)
    write_atomically(folder / name, raw)
    written = [folder / name]
    if is_private:
        text = json.dumps(agreement.guarantee.to_json(), indent=1) + "\n"
        write_atomically(folder / "guarantee.json", text)
        written.append(folder / "guarantee.json")
    else:
        (folder / "guarantee.json").unlink(missing_ok=True)
    federated.write_federated_report(
        folder / "report",
        agreement,
        history,
        coordinator.events(),
        title=agreement.name if is_private else f"{agreement.name} (seeded: NOT private)",
        date=today(),
        out=dict(coordinator.state.out),
        seen_by_clients=sites.seen_by_clients(agreement, history),
        insecure=not is_private,
    )
    scores = [record.metrics for record in history if record.metrics]
    if scores:
        console.print(
            "on public data: " + ", ".join(f"{k} {v:.4g}" for k, v in scores[-1].items()),
            markup=False,
        )
    if is_private:
        show_guarantee(agreement.guarantee.sentence())
    else:
        err().print(
            "NOT private: the noise comes from a seed that is known; no guarantee is written"
        )
    for path in (*written, folder / "report" / "index.html"):
        say(f"wrote {path}")


def _pad_keys(folder: Path, agreement: Agreement) -> dict[str, bytes] | None:
    if agreement.trust != "secure-sum":
        return None
    return {
        name: sites.read_pad_key(folder / "clients" / name / "pad.key")
        for name in agreement.clients
    }
