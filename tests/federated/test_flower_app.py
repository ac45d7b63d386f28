"""The Flower adapter in one process: messages, names, losses, and what hostile parties may send."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from sordino._base.errors import SordinoError
from sordino.together.federated.flower._app import (
    CLIENT_KEY,
    HELLO,
    CoordinatorStrategy,
    InProcessGrid,
    client_app,
    pack,
    run_in_process,
    server_app,
    unpack,
)
from tests.support.lossy import LossyEndpoint


class Adder:
    """Answers a number with that number plus its own."""

    def __init__(self, own: int) -> None:
        self.own = own
        self.answered = 0

    def answer(self, message: bytes) -> bytes:
        self.answered += 1
        return (int.from_bytes(message, "big") + self.own).to_bytes(8, "big")


class Summer:
    """Asks everybody for a number, round by round, and again whoever did not answer."""

    def __init__(self, rounds: int, clients: int, *, again: bool = True) -> None:
        self.rounds, self.clients, self.again = rounds, clients, again
        self.sums: list[int] = []
        self.reasons: list[tuple[str, str]] = []
        self._values: dict[str, int] = {}
        self._tried: set[str] = set()

    waits = True

    @property
    def finished(self) -> bool:
        return len(self.sums) == self.rounds

    def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
        assert list(present) == sorted(present)
        number = len(self.sums).to_bytes(8, "big")
        done = self._values.keys() if self.again else self._tried
        return [(name, number) for name in present if name not in done]

    def receive(self, client: str, reply: bytes) -> None:
        assert client not in self._values
        self._values[client] = int.from_bytes(reply, "big")
        self._count(client)

    def missing(self, client: str, reason: str) -> None:
        self.reasons.append((client, reason))
        self._count(client)

    def _count(self, client: str) -> None:
        self._tried.add(client)
        if len(self._values if self.again else self._tried) == self.clients:
            self.sums.append(sum(self._values.values()))
            self._values, self._tried = {}, set()


def test_every_client_is_asked_every_round() -> None:
    clients = {f"c{i}": Adder(i) for i in range(5)}
    coordinator = Summer(4, 5)
    run_in_process(coordinator, clients)
    assert coordinator.sums == [10, 15, 20, 25]
    assert [client.answered for client in clients.values()] == [4] * 5
    assert not coordinator.reasons


def test_a_message_costs_less_than_half_a_millisecond() -> None:
    class Echo:
        def answer(self, message: bytes) -> bytes:
            return message

    class Asker:
        finished = False
        waits = True
        received = 0

        def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
            return [(name, bytes(4 * 123)) for name in present]

        def receive(self, client: str, reply: bytes) -> None:
            self.received += 1
            self.finished = self.received == 2000

        def missing(self, client: str, reason: str) -> None:
            raise AssertionError(reason)

    def seconds() -> float:
        started = time.process_time()
        run_in_process(Asker(), {f"c{i:02}": Echo() for i in range(100)})
        return time.process_time() - started

    assert min(seconds() for _ in range(3)) < 2000 * 0.5e-3


def test_lost_messages_are_missing_and_asked_for_again() -> None:
    inner = {f"c{i}": Adder(i) for i in range(10)}
    clients = {
        name: LossyEndpoint(inner[name], requests=0.1, replies=0.1, seed=i)
        for i, name in enumerate(inner)
    }
    coordinator = Summer(50, 10)
    run_in_process(coordinator, clients)
    assert coordinator.sums == [45 + 10 * t for t in range(50)]
    lost_requests = sum(client.lost_requests for client in clients.values())
    lost_replies = sum(client.lost_replies for client in clients.values())
    assert len(coordinator.reasons) == lost_requests + lost_replies
    # 500 answers at a rate of 0.81: 117 losses are expected, with a deviation of 12.
    assert 60 < lost_requests + lost_replies < 180
    # The client answered where the reply was lost, and not where the request was.
    assert sum(client.answered for client in inner.values()) == 500 + lost_replies


def test_losses_are_probabilities() -> None:
    with pytest.raises(SordinoError, match="must be in 0 to 1"):
        LossyEndpoint(Adder(0), requests=1.5)


def test_a_failing_client_tells_the_server_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def answer(self, message: bytes) -> bytes:
            raise ValueError("the record of Jane Doe, 54,321 a year")

    coordinator = Summer(1, 2, again=False)
    run_in_process(coordinator, {"good": Adder(1), "bad": Failing()})
    assert coordinator.sums == [1]
    [(client, reason)] = coordinator.reasons
    assert client == "bad"
    assert reason == "the client failed; its own log says why"
    assert "Jane Doe" not in caplog.text  # a log is read by others than the data are
    assert "ValueError at" in caplog.text


def test_a_client_that_comes_back_with_another_node_is_the_same_client() -> None:
    clients = {"a": Adder(1), "b": Adder(2)}
    grid = InProcessGrid(client_app(clients.__getitem__), clients)
    seen: list[tuple[str, ...]] = []

    class Watching(Summer):
        def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
            seen.append(tuple(present))
            asked = super().requests(present)
            if len(seen) == 2:
                grid.disconnect("b")  # it is asked, and is not there any more
            if len(seen) == 4:
                grid.connect("b")
            return asked

    coordinator = Watching(3, 2)
    CoordinatorStrategy(coordinator, timeout=0.05, patience=5).run(grid)
    assert coordinator.sums == [3, 5, 7]
    assert seen[:5] == [("a", "b"), ("a", "b"), ("a",), ("a",), ("a", "b")]
    assert [client for client, _ in coordinator.reasons] == ["b"]


def test_node_ids_stay_whole_numbers() -> None:
    grid = InProcessGrid(client_app({"a": Adder(0)}.__getitem__), ["a"])
    [node] = grid.get_node_ids()
    assert node > 2**63
    assert int(float(node)) != node


def test_of_two_nodes_with_one_name_the_second_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = {"a": Adder(1), "b": Adder(2)}
    grid = InProcessGrid(client_app(clients.__getitem__), ["a", "b", "a"])
    coordinator = Summer(2, 2)
    CoordinatorStrategy(coordinator, patience=5).run(grid)
    assert coordinator.sums == [3, 5]
    assert clients["a"].answered == 2
    assert "another node that is connected is the client 'a'" in caplog.text


def test_a_node_that_says_the_name_of_another_key_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = {"a": Adder(1), "b": Adder(2)}
    grid = InProcessGrid(client_app(clients.__getitem__), ["a", "b"])
    first, second = grid.get_node_ids()
    coordinator = Summer(1, 1)
    strategy = CoordinatorStrategy(coordinator, names={first: "a", second: "a2"}, patience=5)
    strategy.run(grid)
    assert coordinator.sums == [1]
    assert clients["b"].answered == 0
    assert "its key does not belong to a client named 'b'" in caplog.text


@pytest.mark.parametrize("name", ["", "n" * 101])
def test_names_have_bounds(name: str, caplog: pytest.LogCaptureFixture) -> None:
    grid = InProcessGrid(client_app(lambda _: Adder(1)), ["a", name])
    coordinator = Summer(1, 1)
    CoordinatorStrategy(coordinator, patience=5).run(grid)
    assert coordinator.sums == [1]
    assert "does not say a name" in caplog.text


def test_a_client_that_is_not_there_is_missing() -> None:
    class Asking(Summer):
        def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
            return [("a", bytes(8)), ("ghost", bytes(8))]

    coordinator = Asking(1, 2, again=False)
    run_in_process(coordinator, {"a": Adder(1)})
    assert coordinator.reasons == [("ghost", "the client is not connected")]


def test_a_run_with_nothing_to_send_is_given_up() -> None:
    with pytest.raises(
        SordinoError, match=r"nothing to send to the 1 clients present for 0\.1 sec"
    ):
        run_in_process(Summer(1, 2), {"a": Adder(1)}, patience=0.1)


def test_a_silent_node_costs_the_timeout_and_no_more() -> None:
    class Silent(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = list(super().pull_messages(message_ids))
            return [m for m in found if m.metadata.src_node_id != self.silent]

        silent = 0

    clients = {"a": Adder(1), "b": Adder(2)}
    grid = Silent(client_app(clients.__getitem__), clients)
    coordinator = Summer(1, 2, again=False)
    strategy = CoordinatorStrategy(coordinator, timeout=0.2)
    strategy.configure_train(0, ArrayRecord(), ConfigRecord(), grid)  # both have said their names
    grid.silent = list(grid.get_node_ids())[1]
    started = time.monotonic()
    strategy.run(grid)
    assert 0.15 < time.monotonic() - started < 2
    assert coordinator.sums == [1]
    assert coordinator.reasons == [("b", "no reply within 0.2 seconds")]


def test_flowers_own_loop_drives_it_too() -> None:
    clients = {"a": Adder(1), "b": Adder(2)}
    grid = InProcessGrid(client_app(clients.__getitem__), clients)
    coordinator = Summer(3, 2)
    CoordinatorStrategy(coordinator).start(grid, ArrayRecord(), num_rounds=4)
    assert coordinator.sums == [3, 5, 7]


def test_server_app_runs_the_strategy() -> None:
    clients = {"a": Adder(1)}
    grid = InProcessGrid(client_app(clients.__getitem__), clients)
    coordinator = Summer(2, 1)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    server_app(CoordinatorStrategy(coordinator))(grid, context)
    assert coordinator.sums == [1, 2]


@pytest.mark.parametrize("message", [b"", b"\0", bytes(range(256)) * 1000])
def test_bytes_come_out_as_they_went_in(message: bytes) -> None:
    assert unpack(pack(message)) == message


def _array(*fields: Any) -> RecordDict:
    return RecordDict({"message": ArrayRecord({"message": Array(*fields)})})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"message": ConfigRecord({"message": b"abc"})}),
        RecordDict({"message": ArrayRecord()}),
        _array("uint8", (3,), "numpy.ndarray", b"abc"),
        _array("float64", (3,), "bytes", b"abc"),
        _array("uint8", (4,), "bytes", b"abc"),
        _array("uint8", (3, 1), "bytes", b"abc"),
        _array("uint8", (), "bytes", b"abc"),
    ],
)
def test_other_content_is_refused_by_both_sides(content: RecordDict) -> None:
    with pytest.raises(SordinoError, match="one array of bytes"):
        unpack(content)

    # A client that sends it is missing.
    endpoint = Adder(1)
    good = client_app(lambda _: endpoint)

    def bad(message: Message, context: Context) -> Message:
        if message.metadata.message_type == HELLO:
            return good(message, context)
        return Message(content, reply_to=message)

    coordinator = Summer(1, 1, again=False)
    grid = InProcessGrid(bad, ["a"])  # type: ignore[arg-type]
    CoordinatorStrategy(coordinator, patience=5).run(grid)
    assert "one array of bytes" in coordinator.reasons[0][1]

    # A server that sends it gets an error, and the endpoint does not see it.
    sending = InProcessGrid(good, ["a"])
    [node] = sending.get_node_ids()
    [reply] = sending.send_and_receive([Message(content, node, "train")])
    assert reply.has_error()
    assert endpoint.answered == 0


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other", "query.get_parameters"])
def test_a_client_answers_nothing_else(kind: str) -> None:
    endpoint = Adder(1)
    grid = InProcessGrid(client_app(lambda _: endpoint), ["a"])
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([Message(pack(b"x"), node, kind)])
    assert reply.has_error()
    assert endpoint.answered == 0


def test_a_reply_is_taken_only_from_the_node_that_was_asked() -> None:
    other = Adder(5)

    class Mixed(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = list(super().pull_messages(message_ids))
            for reply in found:
                if reply.metadata.message_type == "train":
                    reply.metadata.__dict__["_src_node_id"] = 7
            return found

    grid = Mixed(client_app(lambda _: other), ["a"])
    coordinator = Summer(1, 1, again=False)
    CoordinatorStrategy(coordinator, patience=5).run(grid)
    assert coordinator.reasons == [("a", "the reply came from another node")]


@pytest.mark.parametrize("change", [{"timeout": 0.0}, {"poll": -1.0}, {"hello": float("nan")}])
def test_times_must_be_positive(change: dict[str, Any]) -> None:
    with pytest.raises(SordinoError, match=f"{next(iter(change))} must be seconds above 0"):
        CoordinatorStrategy(Summer(1, 1), **change)


def test_a_node_without_a_name_in_its_configuration_says_none() -> None:
    app = client_app(lambda _: Adder(0))
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    grid = InProcessGrid(app, ["a"])
    [node] = grid.get_node_ids()
    with pytest.raises(SordinoError, match=f"no client name under '{CLIENT_KEY}'"):
        app(Message(RecordDict(), node, HELLO), context)


@pytest.mark.parametrize("module", ["_app", "_inprocess", "_simulation", "_deployment"])
def test_without_flwr_the_extra_is_named(module: str) -> None:
    code = (
        "import sys, importlib.util as u; real = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name == 'flwr' else real(name, *a)\n"
        "from sordino._base.errors import MissingExtraError\n"
        "try:\n"
        f"    import sordino.together.federated.flower.{module}\n"
        "except MissingExtraError as error:\n"
        "    assert \"pip install 'sordino[fl]'\" in str(error)\n"
        "else:\n"
        "    sys.exit('imported')\n"
        "assert 'flwr' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_flower_calls_nobody() -> None:
    code = (
        "import sordino.together.federated.flower._app, os, sys; from flwr.supercore import telemetry; "
        "assert telemetry.FLWR_TELEMETRY_ENABLED == '0'; "
        "assert os.environ['FLWR_DISABLE_UPDATE_CHECK'] == '1'; "
        "assert 'jax' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_rest_of_the_room_imports_no_flwr() -> None:
    code = (
        "import sys, sordino.together.federated; "
        "assert 'flwr' not in sys.modules and 'numpy' not in sys.modules; "
        "import sordino.together.federated._messages; "
        "assert 'flwr' not in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_toys_fit_the_protocols() -> None:
    from sordino.together.federated._messages import Coordinator, Endpoint

    endpoint: Endpoint = Adder(1)
    lossy: Endpoint = LossyEndpoint(endpoint)
    coordinator: Coordinator = Summer(1, 1)
    make: Callable[[str], Endpoint] = {"a": lossy}.__getitem__
    assert make("a") is lossy
    assert not coordinator.finished
