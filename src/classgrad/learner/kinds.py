"""The kinds of inputs that learners can have, by the name of their network."""

from classgrad import networks
from classgrad.learner.images import ImageInputs
from classgrad.learner.inputs import InputKind
from classgrad.learner.sentences import SentenceInputs

KINDS: dict[str, type[InputKind]] = {kind.several: kind for kind in (ImageInputs, SentenceInputs)}
# Of a learner that is given neither a network nor a trunk.
NETWORK = {"images": "efficientnet-lite0", "sentences": "minilm"}


def kind_of(network: str | None) -> type[InputKind]:
    """Return what a network reads; None is a trunk of the user's own, and reads images."""
    return KINDS["images" if network is None else networks.kind(network).reads]


def named_kind(network: str | None) -> type[InputKind]:
    """Return the same for a network of a saved state, which need not be in the table."""
    return kind_of(network if network in networks.NETWORKS else None)
