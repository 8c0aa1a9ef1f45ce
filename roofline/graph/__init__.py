"""The operators of a model, each a FLOP count and its tensors.

In: a `Model`, a `Precision`, fusions and parallelism. Out: a `Network` of `Op`s whose sizes are polynomials in batch,
query and key lengths.
"""

from roofline.graph.convention import Convention
from roofline.graph.network import Build, Network, network
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Parallelism
from roofline.graph.tensor import Role, Tensor

__all__ = ["Build", "Convention", "Kind", "Network", "Op", "Parallelism", "Role", "Tensor", "network"]
