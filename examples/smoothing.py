"""A method in one file: cross-entropy to labels that keep a share for all other classes.

flnl-bench run --plugin examples/smoothing.py --method smoothing --setting sym-1.0
"""

import torch.nn.functional as F

from flnl_bench import Method, Share


class Smoothing(Method):
    """Label smoothing: a wrong label pulls less."""

    name = "smoothing"
    title = "Label smoothing"
    reference = "Szegedy et al., Rethinking the Inception Architecture, CVPR 2016"

    smoothing: Share = 0.3  # share of the label that all classes get in equal parts

    def loss(self, model, batch, client):
        """Return one loss for each sample."""
        return F.cross_entropy(model(batch.x), batch.y, reduction="none", label_smoothing=self.smoothing)
