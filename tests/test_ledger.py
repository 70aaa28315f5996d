"""What a round takes beside bytes and passes, and what leaves a client beside the weights."""

import numpy as np
import pytest
import torch
from command_line import flnl, tiny
from flnl_methods.fedcorr import FedCorr
from flnl_methods.fedgr import FedGR
from flnl_methods.fednoro import FedNoRo

from flnl_bench import Method
from flnl_bench.engine.ledger import leaving, merge, per_unit, sentence, take_work
from flnl_bench.numerics import count_work, two_gaussians
from flnl_bench.testing import run_rounds, toy_engine

SAMPLES, CLASSES = 7, 4


def kinds(message, samples=SAMPLES):
    return {
        name: (e["per"], e["units"], e["numbers"]) for name, e in leaving(message, samples, CLASSES).items()
    }


def test_what_has_the_length_of_the_samples_is_for_samples_and_so_on():
    message = {
        "losses": torch.zeros(7),
        "features": np.zeros((7, 3)),
        "listed": [0.5] * 7,
        "by_id": dict.fromkeys(range(7), 0.1),
        "prototypes": torch.zeros(4, 5),
        "ratio": 0.3,
        "scalar": torch.tensor(1.0),
        "filter": np.zeros((3, 2)),
        "nothing": None,
        "empty": torch.zeros(0),
    }
    assert kinds(message) == {
        "losses": ("sample", 7, 7),
        "features": ("sample", 7, 21),
        "listed": ("sample", 7, 7),
        "by_id": ("sample", 7, 7),
        "prototypes": ("class", 4, 20),
        "ratio": ("client", 1, 1),
        "scalar": ("client", 1, 1),
        "filter": ("client", 1, 6),
    }


def test_parts_of_different_lengths_under_one_name_are_a_clients():
    assert kinds({"model": {"w": torch.zeros(7, 2), "b": torch.zeros(2)}}) == {"model": ("client", 1, 16)}


def test_a_client_with_as_many_samples_as_classes_does_not_hide_what_is_for_classes():
    alike = leaving({"x": torch.zeros(4)}, 4, CLASSES)
    assert alike["x"]["per"] == "sample"  # the worse of the two
    both = merge([alike, leaving({"x": torch.zeros(4)}, 9, CLASSES)])
    assert both["x"] == {"per": "class", "messages": 2, "units": 8, "numbers": 8, "bytes": 32}
    odd = merge([both, leaving({"x": torch.zeros(5)}, 9, CLASSES)])
    assert odd["x"] == {"per": "client", "messages": 3, "units": 3, "numbers": 13, "bytes": 52}


def test_the_sentence_names_numbers_and_bytes():
    sent = merge(
        [
            leaving({"n_k": 7, "ids": torch.zeros(7), "losses": torch.zeros(7)}, 7, CLASSES),
            leaving({"n_k": 9, "ids": torch.zeros(9), "losses": torch.zeros(9)}, 9, CLASSES),
            leaving({"means": torch.zeros(4)}, 9, CLASSES),
        ]
    )
    assert sentence(sent) == (
        "Besides weights, a client sends 2 numbers for each of its samples (ids, losses; 8 bytes), "
        "1 number for each class (means; 4 bytes), 1 number once (n_k; 8 bytes)."
    )
    assert [per_unit(sent, "numbers", per) for per in ("sample", "class", "client")] == [2, 1, 1]
    assert sentence({"n_k": sent["n_k"]}).endswith("sends the number of its samples and nothing else.")


def test_work_is_counted_until_it_is_taken():
    take_work()
    two_gaussians(np.array([[0.0], [0.1], [5.0], [5.1]]))
    count_work(searches=3)
    taken = take_work()
    assert (taken.mixtures, taken.searches) == (1, 3)
    assert take_work().mixtures == 0


class Telling(Method):
    """FedAvg whose clients send a number for each class, and count a mixture each; the server one more."""

    name = "telling"

    def upload(self, model, client):
        count_work(mixtures=1)
        return {"counts": torch.zeros(client.terms.classes)}

    def round(self, server, federation):
        count_work(mixtures=1, searches=2)
        federation.visit([0, 1], look)
        return super().round(server, federation)


def look(client):
    return {"labels": client.y}


def test_a_round_counts_the_work_of_clients_and_server_and_what_was_sent():
    count_work(mixtures=100)  # before the round: of no round
    engine = toy_engine(Telling())
    (row,) = run_rounds(engine, 1)
    counts, sizes, clients = row["counts"], engine.server.sizes, row["clients"]
    assert counts["samples"] == sum(sizes[k] for k in clients)
    assert (counts["mixtures"], counts["searches"]) == (len(clients) + 1, 2)
    assert counts["sent"]["labels"]["units"] == sizes[0] + sizes[1]
    assert counts["sent"]["labels"]["per"] == "sample"
    assert counts["sent"]["counts"]["per"] == "class"
    assert counts["sent"]["n_k"]["messages"] == len(clients)


@pytest.mark.parametrize(
    ("method", "per", "names"),
    [
        (FedGR(), "sample", {"ids", "losses"}),
        (FedNoRo(), "class", {"losses"}),
        (FedCorr(), "client", {"lid", "n_k", "noise_ratio"}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_methods_send_what_their_papers_say(method, per, names):
    rows = run_rounds(toy_engine(method))
    sent = merge(row["counts"]["sent"] for row in rows)
    assert {name for name, entry in sent.items() if entry["per"] == per} >= names - {"noise_ratio"}
    assert sum(row["counts"]["mixtures"] for row in rows) > 0
    if method.name == "fedcorr":  # a search for each local model of the first stage
        assert sum(row["counts"]["searches"] for row in rows) == sent["lid"]["messages"]


def test_the_record_of_a_run_has_the_sums_of_its_rounds(tmp_path):
    path = flnl(*tiny(tmp_path, "--json")).json["run_dir"]
    rows = flnl("show", path, "--json").json
    total = rows["summary"]["counts"]
    assert total["samples"] == sum(row["counts"]["samples"] for row in rows["rounds"]) == 300
    assert total["sent"]["n_k"]["messages"] == sum(len(row["clients"]) for row in rows["rounds"])
    assert "sent       Besides weights, a client sends the number of its samples" in flnl("show", path).out
