"""What runs: the operators of a model, each a FLOP count and the tensors that it touches.

In: a `Model`, a `Precision`, fusions and a parallel layout. Out: a `Network` of `Op`s whose sizes are polynomials in
batch, query and key lengths. Knows nothing of time.
"""

from roofline.graph.convention import Convention
from roofline.graph.network import Build, Network, network
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Parallelism
from roofline.graph.tensor import Role, Tensor

__all__ = ["Build", "Convention", "Kind", "Network", "Op", "Parallelism", "Role", "Tensor", "network"]
