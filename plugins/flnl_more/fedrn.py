"""FedRN: a client looks for right labels with its own last model and those of its most reliable neighbours.

Kim, Shin, Jang, Song, Yun. "FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated Learning".
CIKM 2022, pp. 972-981. Reliable is who fits its own labels well and answers like the client to one image
of noise. Each of these models gives a mixture over the client's losses; then the global model is trained
on what they agree is clean.

Follows the authors' code; choices, and what is unconfirmed: docs/methods.md.

The price: neighbours' models are sent to other clients, and the server keeps one model of every client.

Symbols: t round, T1 warm-up rounds, e_k share of its labels that client k predicts, o_k its logits for
the image of noise, α weight of e, s_j score, q^j clean posterior by model j (0: the own), D⁰ samples with
q⁰ > ½ (`threshold`), two at least.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Federation,
    Method,
    Model,
    NotNegative,
    Range,
    Server,
    Share,
    State,
    Step,
    Terms,
    Update,
    Weights,
    copy_weights,
    network_weights,
)
from flnl_bench.numerics import (
    clean_posterior,
    cosine,
    finite_updates,
    min_max_scaled,
    sgd_step,
    warmup_rounds,
)


class FedRN(Method):
    """Clean samples by a vote of reliable neighbours' models (from the code; the paper is unconfirmed)."""

    name = "fedrn"
    reference = "Kim et al., FedRN: Exploiting k-Reliable Neighbors Towards Robust FL, CIKM 2022"

    neighbours: Annotated[int, Range()] = 2  # k
    expertise_weight: Share = 0.6  # α; the rest is that of similarity
    warmup_share: Share = 0.2  # T1 as a share of all rounds; at least 3 and a visit of most clients
    threshold: Share = 0.5  # q above which a label counts as clean
    head_lr: NotNegative = 0.01  # of the SGD that tunes a neighbour's head
    head_momentum: Share = 0.5
    head_decay: NotNegative = 5e-4
    head_only_features: bool = True
    keep: Literal["fp32", "fp16"] = "fp32"  # how the server keeps, and sends, clients' models

    def warmup(self, terms: Terms) -> int:
        """T1."""
        return warmup_rounds(self.warmup_share, terms)

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """By client that was seen: its last model, e and o."""
        return {"models": {}, "expertise": {}, "outputs": {}}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg; after the warm-up, the clients that train on everything are counted."""
        seen = set(server.state["models"])
        super().round(server, federation)
        if server.round < self.warmup(server.terms):
            return {}
        return {"first_seen": float(len(set(server.state["models"]) - seen))}

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """A seed for the image of noise; after the warm-up, scores (the own first) and neighbours' models."""
        message = {"seed": int(server.stream("image of noise").integers(2**31))}
        models = server.state["models"]
        if server.round < self.warmup(server.terms) or client_id not in models:
            return message
        found = reliable(
            client_id,
            server.state["expertise"],
            server.state["outputs"],
            self.neighbours,
            self.expertise_weight,
        )
        return {**message, "scores": found.scores, "neighbours": [models[k] for k in found.clients]}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The mean by the full n_k; the server keeps models, e and o, but not of models that diverged."""
        for u in finite_updates(updates):
            server.state["models"][u.client] = {
                name: w.half() if self.keep == "fp16" else w for name, w in u.weights.items()
            }
            server.state["expertise"][u.client] = u.message["expertise"]
            server.state["outputs"][u.client] = u.message["output"]
        return super().aggregate(server, updates)

    # -- a round on a client -----------------------------------------------------------------------
    def on_receive(self, model: Model, client: Client) -> None:
        """After the warm-up, judge the own labels with the own last model and the neighbours'."""
        if "scores" not in client.inbox:
            return
        own = posterior(client, client.bind(client.state["own"]))
        sure = np.flatnonzero(chosen(own, self.threshold))  # D⁰
        votes = [own]
        for weights in client.inbox["neighbours"]:
            net = client.bind({name: w.to(torch.get_default_dtype()) for name, w in weights.items()})
            votes.append(posterior(client, *self.tuned(net, sure, client)))
        q = weighted(votes, client.inbox["scores"])
        client.state.update(clean_probability=q, clean=chosen(q, self.threshold))

    @torch.no_grad()
    def tuned(self, net: Model, rows: np.ndarray, client: Client) -> tuple[Model, nn.Module]:
        """A neighbour's network and its head, tuned for one epoch; what was received stays as it is."""
        inside = torch.zeros_like(client.y, dtype=torch.bool)
        inside[torch.from_numpy(rows)] = True
        frozen = self.head_only_features
        if not frozen:  # its statistics will move
            net = copy.deepcopy(net).train()

        def look(batch: Batch) -> Tensor:
            images = batch.x[inside[batch.index]]
            return net.features(images) if frozen else images

        seen = client.map(look, views=("weak",))
        given, head = client.y[inside], copy.deepcopy(net.head).requires_grad_()
        weights = list(head.parameters())
        velocities = [torch.zeros_like(w) for w in weights]
        # From the method's own draws: the order of the training batches stays that of every method.
        for step in client.steps(np.arange(len(rows)), epochs=1, rng=client.rng):
            part = torch.from_numpy(step.rows)
            features = seen[part] if frozen else net.features(seen[part])
            with torch.enable_grad():
                gradients = torch.autograd.grad(F.cross_entropy(head(features), given[part]), weights)
            sgd_step(weights, gradients, velocities, self.head_lr, self.head_momentum, self.head_decay)
        return net.eval(), head

    def plan(self, model: Model, client: Client) -> Iterator[Sequence[Step]]:
        """All epochs over what is judged clean, or over everything."""
        judged = "scores" in client.inbox
        yield client.steps(np.flatnonzero(client.state["clean"])) if judged else client.steps()

    def upload(self, model: Model, client: Client) -> Mapping[str, Any]:
        """e and o of the trained model, which the client keeps for its next visit."""
        client.state["own"] = copy_weights(network_weights(model))
        right = client.map(lambda batch: model(batch.x).argmax(1) == batch.y)
        with torch.no_grad():
            output = model(image_of_noise(client))[0]
        return {"expertise": right.float().mean().item(), "output": output}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """What the last vote said, if there was one."""
        if "clean" not in state:
            return Beliefs()
        clean = state["clean"]
        ratio = 1 - float(clean.mean())
        return Beliefs(clean=clean, clean_probability=state["clean_probability"], noise_ratio=ratio)


# -- neighbours ----------------------------------------------------------------------------------------
class Reliable(NamedTuple):
    """Neighbours of a client, best first, and the scores of the client itself and of them."""

    clients: list[int]
    scores: list[float]


def reliable(
    client: int, expertise: Mapping[int, float], outputs: Mapping[int, Tensor], count: int, alpha: float
) -> Reliable:
    """The `count` clients with the highest α·ê + (1 − α)·ĉ, of equal ones the lowest numbers."""
    seen = sorted(expertise)
    similar = [float(cosine(outputs[client], outputs[k])) for k in seen]
    e, c = (scaled(values) for values in ([expertise[k] for k in seen], similar))
    c[seen.index(client)] = 1.0
    scores = dict(zip(seen, (alpha * e + (1 - alpha) * c).tolist(), strict=True))
    others = sorted((k for k in seen if k != client), key=lambda k: -scores[k])[:count]
    return Reliable(others, [scores[k] for k in (client, *others)])


def scaled(values: Sequence[float]) -> np.ndarray:
    """Values between 0 and 1; all 0 where they are equal."""
    found = min_max_scaled(np.array(values))
    return np.zeros(len(values)) if found is None else found


def image_of_noise(client: Client) -> Tensor:
    """One image of standard normal noise, the same for all clients and rounds."""
    draws = np.random.default_rng(client.inbox["seed"]).standard_normal((1, *client.image_shape))
    return torch.from_numpy(draws).to(client.y.device, torch.get_default_dtype())


# -- judging -------------------------------------------------------------------------------------------
def posterior(client: Client, net: Model, head: nn.Module | None = None) -> np.ndarray:
    """q of a network, or of its body with another head; 1 for all where its losses form no two groups."""
    head = net.head if head is None else head
    losses = client.map(lambda b: F.cross_entropy(head(net.features(b.x)), b.y, reduction="none"))
    q = clean_posterior(losses.cpu().numpy())
    return np.ones(client.size) if q is None else q


def weighted(votes: Sequence[np.ndarray], scores: Sequence[float]) -> np.ndarray:
    """The mean of posteriors by their scores, or a plain one where these are all 0."""
    return np.average(votes, axis=0, weights=scores if sum(scores) > 0 else None)


def chosen(q: np.ndarray, threshold: float) -> np.ndarray:
    """What is trained on: q above the threshold, two samples at least, or everything if there is none."""
    clean = q > threshold
    if clean.sum() == 1:  # too few for BatchNorm: the next best joins
        clean[np.argsort(-q, kind="stable")[:2]] = True
    return clean if clean.any() else np.ones_like(clean)
