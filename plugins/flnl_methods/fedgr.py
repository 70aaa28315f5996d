"""FedGR: the global model sieves and refines labels, revises local teachers and anchors features.

"Learning Locally, Revising Globally: Global Reviser for Federated Learning with Noisy Labels".
ICML 2026. The global model memorises wrong labels slowly, so its losses tell clean from noisy
samples, its confident predictions replace wrong labels, and it corrects each client's EMA teacher.

The defaults follow the paper's equations. Its tables come from its authors' code, which does eight things
otherwise; `fedgr/released` does them too, and each is a switch.

Symbols: t round, α warm-up rounds, ŷ given label, q clean posterior, r_k noise ratio of client k,
x^w / x^s weakly / strongly augmented image, w_g global model, f features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

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
    Server,
    State,
    Step,
    Terms,
    Update,
    bounded,
    copy_weights,
    mix_into,
    network_weights,
)
from flnl_bench.numerics import clients_in_turn, kl_divergence, loss_mixture, soft_cross_entropy

FLOOR = 5e-4  # added to the variances of the mixture

# What the authors' code does otherwise than the equations, as hyper-parameters of FedGR.
RELEASED = (
    "batch_weights",
    "keep_clean",
    "strict_beta",
    "late_coverage",
    "revise_twice",
    "ramped_ema",
    "second_look",
    "unguarded",
)


class FedGR(Method):
    """Sieve, refine, revise, regularise."""

    name = "fedgr"
    reference = "Learning Locally, Revising Globally: Global Reviser for F-LNL, ICML 2026"
    version = 2  # D^r_k accumulates
    variants = {
        "released": dict.fromkeys(RELEASED, True),
        "no-sieve": {"sieve": "local"},
        "no-refine": {"refine": False},
        "no-repreg": {"lambda_r": 0.0},
        "no-ema": {"lambda_b": 0.0},
        "no-weak": {"weak_aug": False},
        "no-strong": {"strong_aug": False},
        "online-ema": {"teacher": "online"},
        "replacement": {"warmup_sampling": "with"},
    }

    warmup_share: float = 0.2  # α as a share of all rounds; at least one visit of every client
    lambda_b: float = 1.0  # λ_B, weight of distillation from the EMA teacher
    lambda_r: float = 0.1  # λ_R, weight of the representation regulariser
    gamma_g: float = 0.9  # γ_g, what the teacher keeps when it is revised by the global model
    gamma_l: float = 0.99  # γ_l, what the teacher keeps at every local step
    temperature: float = 0.5  # τ
    confidence: float = 0.9  # ε, from which a prediction becomes a pseudo label
    noisy_client: float = 0.8  # β, noise ratio from which a client's own labels are not used
    coverage: float = 0.5  # μ, share of usable samples below which a noisy client's teacher is replaced
    sieve: Literal["federated", "local"] = "federated"
    refine: bool = True
    weak_aug: bool = True
    strong_aug: bool = True
    teacher: Literal["revised", "online"] = "revised"
    warmup_sampling: Literal["without", "with"] = "without"  # replacement
    # The paper's equation keeps pseudo labels only; its authors' earlier code also labels judged clean.
    high_noise_labels: Literal["pseudo", "pseudo+clean"] = "pseudo"
    # As released: the authors' code in two states, of which b is the later.
    release: Literal["a", "b"] = "b"
    batch_weights: bool = False  # labels are weighted by the mean q of the mini-batch
    keep_clean: bool = False  # the store keeps labels once judged clean (b: only of clients below β)
    strict_beta: bool = False  # b: a client at β itself still uses its labels
    late_coverage: bool = False  # coverage counts D^r_k of the visit before, and r_k > β
    revise_twice: bool = False  # w_g is mixed into the teacher again after its logits were taken
    ramped_ema: bool = False  # the teacher follows twice a step, with a decay that grows over its life
    second_look: bool = False  # b: also the local model's losses after an epoch; a: anchor anew in every step
    unguarded: bool = False  # short last batches are dropped, mixtures whose means coincide are believed

    def __post_init__(self) -> None:
        shares = ("warmup_share", "gamma_g", "gamma_l", "confidence", "noisy_client", "coverage")
        bounded(self, *shares, high=1)
        bounded(self, "lambda_b", "lambda_r")
        bounded(self, "temperature", above=True)

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """α, the number of warm-up rounds."""
        return max(round(self.warmup_share * terms.rounds), terms.rounds_for_all)

    def sample(self, server: Server) -> list[int]:
        """In the warm-up all clients in turn; then uniform draws."""
        if server.round >= self.warmup(server.terms) or self.warmup_sampling == "with":
            return super().sample(server)
        return clients_in_turn(server, "warm-up")

    def views(self) -> tuple[str, ...]:
        """x^s, and x^w if teacher or anchor look at every batch anew."""
        strong = "strong" if self.strong_aug else "plain"
        return (strong, self._weak) if self.teacher == "online" or self._fresh_anchor else (strong,)

    @property
    def _weak(self) -> str:
        return "weak" if self.weak_aug else "plain"

    @property
    def _fresh_anchor(self) -> bool:
        return self.second_look and self.release == "a"

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The newest mean losses, clean posteriors and noise ratios, by client."""
        return {"losses": {}, "clean_probability": {}, "noise_ratio": {}}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg, then one mixture over the losses of the round's clients."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        if self.sieve == "federated":
            self.sieve_round(server, updates)
        return {}

    def sieve_round(self, server: Server, updates: Sequence[Update]) -> None:
        """Federated sieving: q of every sample of the round and r_k of every client."""
        losses = [update.message["losses"] for update in updates]
        posterior = clean_posterior(torch.cat(losses), guarded=not self.unguarded)
        for update, loss, q in zip(updates, losses, posterior.split([len(x) for x in losses]), strict=True):
            server.state["losses"][update.client] = loss
            server.state["clean_probability"][update.client] = q
            server.state["noise_ratio"][update.client] = noise_ratio(q)

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """What the server knows of the client's own samples; nothing before its first visit."""
        q = server.state["clean_probability"].get(client_id)
        if q is None:
            return {}
        ratio = server.state["noise_ratio"][client_id]
        return {"clean_probability": q, "clean": q >= 0.5, "noise_ratio": ratio}

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """Running mean of the losses, labels found so far, what could be trained on, the teacher."""
        return {
            "visits": 0,  # T_k
            "mean_loss": torch.zeros(client.size, device=client.y.device),
            "pseudo": torch.full_like(client.y, -1),
            "usable": torch.zeros_like(client.y, dtype=torch.bool),  # D^r_k
            "teacher": {},
            "followed": 0,  # updates of a ramped EMA
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """One look at the own data with the global model, then refine labels and revise the teacher."""
        received, state, scratch = client.received, client.state, client.scratch

        # Features and pseudo labels from x^w; the sieve's losses from the plain image, in a second pass.
        features, logits = client.map(lambda batch: received.both(batch.x), views=(self._weak,))
        if self.sieve == "federated":
            self._remember(losses_of(received, client), state)
        revising = client.round >= self.warmup(client.terms)
        q, clean, ratio = read_judgement(client.inbox or state.get("judged"), client.y)
        before = state["usable"]
        if revising:
            self.grow_store(state, logits, client.y, clean, ratio)
            share, labels = self.refine_labels(q, clean, ratio, state["pseudo"])
        else:
            share, labels = torch.ones_like(q), state["pseudo"]
        self.revise_teacher(client, before if self.late_coverage else state["usable"], ratio, revising)
        teacher = client.bind(state["teacher"])
        given, guess = (one_hot_or_zero(y, client.terms.classes) for y in (client.y, labels))
        scratch.update(live=network_weights(model), features=features, teacher=teacher)
        scratch.update(share=share.unsqueeze(1), given=given, guess=guess)
        if self.lambda_b and self.teacher == "revised":
            scratch["logits"] = client.map(lambda batch: teacher(batch.x), views=(self._weak,))
        if revising and self.revise_twice:
            mix_into(state["teacher"], network_weights(received), self.gamma_g)
        target = blend(scratch["share"], given, guess)
        state["labels"] = torch.where(target.sum(1) > 0, target.argmax(1), -1)

    def _remember(self, loss: Tensor, state: State) -> None:
        """The running mean ℓ̄ over the visits of this client."""
        state["visits"] += 1
        state["mean_loss"] = state["mean_loss"] + (loss - state["mean_loss"]) / state["visits"]

    def grow_store(self, state: State, logits: Tensor, y: Tensor, clean: Tensor, ratio: float) -> None:
        """Confident predictions enter the store; what it has stays, and so does D^r_k."""
        if self.refine or self.keep_clean:
            state["pseudo"] = newest_pseudo_labels(logits, self.confidence, state["pseudo"])
        if self.keep_clean and (self.release == "a" or ratio < self.noisy_client):
            state["pseudo"] = torch.where(clean, y, state["pseudo"])
        found = state["pseudo"] >= 0
        state["usable"] = found if self.keep_clean else state["usable"] | clean | found

    def refine_labels(self, q: Tensor, clean: Tensor, ratio: float, pseudo: Tensor) -> tuple[Tensor, Tensor]:
        """Label refining: what share of a sample's label is the given one [n], and the other label [n].

        A sample whose other label is -1 has only that share of a loss.
        """
        if not self.refine:
            return clean.to(q.dtype), torch.full_like(pseudo, -1)
        noisy = ratio > self.noisy_client if self._beta_is_low else ratio >= self.noisy_client
        if noisy:
            keep = self.high_noise_labels == "pseudo+clean"
            return (clean.to(q.dtype) if keep else torch.zeros_like(q)), pseudo
        return (q if self.batch_weights else torch.where(clean, 1.0, q)), pseudo

    @property
    def _beta_is_low(self) -> bool:
        """Whether a client at β counts as one below it."""
        return self.strict_beta and self.release == "b"

    def revise_teacher(self, client: Client, usable: Tensor, ratio: float, revising: bool) -> None:
        """w_ema ← γ_g·w_ema + (1 − γ_g)·w_g; w_g whole where the teacher cannot be trusted."""
        state, w_g = client.state, network_weights(client.received)
        noisy = ratio > self.noisy_client if self.late_coverage else ratio >= self.noisy_client
        astray = noisy and usable.sum().item() / client.size < self.coverage  # |D^r_k| / n_k < μ
        replace = not revising or not state["teacher"] or astray
        if replace:
            state["teacher"] = copy_weights(w_g)
        else:
            mix_into(state["teacher"], w_g, self.gamma_g)
        state["replaced"] = float(replace)

    def plan(self, model: Model, client: Client) -> Iterator[Sequence[Step]]:
        """All epochs; as released with another look at the losses, by the local model after the first."""
        looks = self.second_look and self.release == "b" and self.sieve == "federated"
        if looks and client.epochs > 1:  # theirs is taken when the second epoch begins
            yield self._steps(client, epochs=1)
            model.eval()
            self._remember(losses_of(model, client), client.state)
            model.train()
            yield self._steps(client, epochs=client.epochs - 1)
        else:
            yield self._steps(client, epochs=client.epochs)

    def _steps(self, client: Client, epochs: int) -> list[Step]:
        """Mini-batches; as released the short last one of an epoch is dropped, even if there is no other."""
        steps, size = client.steps(epochs=epochs), client.terms.batch_size
        if not self.unguarded:
            return steps
        return [Step(step.rows[:size]) for step in steps if len(step.rows) >= size]

    def loss(self, model: Model, batch: Batch, client: Client) -> Tensor:
        """L^SR + λ_B·B + λ_R·R."""
        scratch = client.scratch
        features, logits = model.both(batch.x)
        share, given, guess = (scratch[part][batch.index] for part in ("share", "given", "guess"))
        if self.batch_weights and self.refine:  # their losses [n] times a column of q [n, 1] is a matrix
            share = share.to(logits.dtype).mean(0, keepdim=True)  # without its dimension float32 would win
        total = soft_cross_entropy(logits, blend(share, given, guess))
        if self.lambda_b and client.round >= self.warmup(client.terms):
            guide = self._teacher_logits(batch, scratch)  # B, zero in the warm-up
            total = total + self.lambda_b * kl_divergence(guide, logits, self.temperature)
        if self.lambda_r:
            anchor = self._anchor(batch, client)  # R, from round 0 on
            total = total + self.lambda_r * kl_divergence(anchor, features, self.temperature)
        return total

    def _teacher_logits(self, batch: Batch, scratch: Mapping[str, Any]) -> Tensor:
        if self.teacher == "revised":
            return scratch["logits"][batch.index]
        with torch.no_grad():
            return scratch["teacher"](batch.views[1])

    def _anchor(self, batch: Batch, client: Client) -> Tensor:
        if not self._fresh_anchor:
            return client.scratch["features"][batch.index]
        with torch.no_grad():
            return client.received.features(batch.views[1])

    def on_step(self, model: nn.Module, client: Client) -> None:
        """w_ema ← γ_l·w_ema + (1 − γ_l)·w_k: between two revisions the teacher follows the local model."""
        state, keep = client.state, self.gamma_l
        if self.ramped_ema:  # two updates towards the same weights are one, with the product of their decays
            state["followed"] += 2
            keep = math.prod(ramped_decay(n, keep) for n in (state["followed"] - 1, state["followed"]))
        mix_into(state["teacher"], client.scratch["live"], keep)

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """Ids and mean losses; nothing where the client sieves alone."""
        state = client.state
        if self.sieve == "federated":
            return {"ids": torch.arange(client.size, dtype=torch.int32), "losses": state["mean_loss"]}
        self._remember(losses_of(model, client), state)
        q = clean_posterior(state["mean_loss"].cpu(), guarded=not self.unguarded)
        state["judged"] = {"clean_probability": q, "clean": q >= 0.5, "noise_ratio": noise_ratio(q)}
        return {}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """What server and client think of the client's labels."""
        judged = self.inbox(server, client_id) or state.get("judged", {})
        return Beliefs(
            clean=judged.get("clean"),
            clean_probability=judged.get("clean_probability"),
            noise_ratio=judged.get("noise_ratio"),
            labels=state["labels"],
            pseudo_labels=state["pseudo"],
            numbers={"teacher_replaced": state["replaced"]},
            losses=state["mean_loss"],
        )


def losses_of(model: Model, client: Client) -> Tensor:
    """A model's loss on each plain image of a client, by the given label."""
    return client.map(lambda batch: F.cross_entropy(model(batch.x), batch.y, reduction="none"))


def clean_posterior(losses: Tensor, guarded: bool = True) -> Tensor:
    """q: posterior of the low-loss component; all clean where no two components can be told apart."""
    fit = loss_mixture(losses.numpy(), max_iter=50, tol=1e-2, reg_covar=FLOOR)
    # No component is narrower than √FLOOR: means that are closer than that belong to one group.
    if fit is None or (guarded and fit.means[1] - fit.means[0] < math.sqrt(FLOOR)):
        return torch.ones(len(losses))
    return torch.from_numpy(fit.clean_probability).to(torch.get_default_dtype())


def noise_ratio(q: Tensor) -> float:
    """r_k, the share judged noisy."""
    return float(np.mean(q.numpy() < 0.5))


def read_judgement(judged: Mapping[str, Any] | None, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """q, clean flags and r_k; all clean before the first judgement."""
    if not judged:
        return torch.ones(len(y), device=y.device), torch.ones_like(y, dtype=torch.bool), 0.0
    return judged["clean_probability"], judged["clean"], judged["noise_ratio"]


def newest_pseudo_labels(logits: Tensor, confidence: float, store: Tensor) -> Tensor:
    """Confident predictions replace what the store has; the rest of it stays."""
    top, guess = logits.softmax(1).max(1)
    return torch.where(top > confidence, guess, store)


def one_hot_or_zero(labels: Tensor, classes: int) -> Tensor:
    """One-hot rows; zeros for the label -1."""
    return F.one_hot(labels + 1, classes + 1)[:, 1:].to(torch.get_default_dtype())


def blend(share: Tensor, given: Tensor, guess: Tensor) -> Tensor:
    """Soft targets [n, C]; a row of zeros has no label and no loss."""
    return share * given + (1 - share) * guess


def ramped_decay(n: int, highest: float) -> float:
    """What a teacher keeps at the n-th update of its life: nothing at the first three, then 1 − 1/(n − 1)."""
    return 0.0 if n <= 3 else min(highest, 1 - 1 / (n - 1))
