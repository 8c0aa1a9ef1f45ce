"""Time of Kimi's delta attention in prefill: the gated delta rule with a decay for each channel of a key.

A unit takes one head of a sequence from its first token to its last, chunk by chunk. With the GEMMs and the traffic of
`roofline.timing.kernels.gated_delta_rule`, of which the decays of all channels are 2 B L H d_k bytes more:

    recurrence     T_C = ceil(B H / S) (head + token C ceil(L / C))     C = 64; `head`: the start and end of a head
    time           t   = launch + (T_C^p + T^p)^(1/p),                  T = T_F + T_M

`chunked` kernels are FLA's, in Triton; `fused` ones are FlashKDA's. Bound and terms are those of the gated delta rule.
"""

from __future__ import annotations

from roofline.core.parameters import Parameter, Unit
from roofline.timing.kernels import gated_delta_rule
from roofline.timing.kernels.gated_delta_rule import DeltaRule
from roofline.timing.kernels.model import Array, Row, column

PARAMETERS = (
    *gated_delta_rule.PARAMETERS,
    Parameter("head", Unit.SECONDS, 0.1e-6, 100e-6, 5e-6, "start and end of a head of a sequence"),
)


class KimiDelta(DeltaRule, frozen=True):
    """The delta rule with a decay for each of `key_dim` channels of a head; GEMMs and memory take turns."""

    @property
    def overlapping(self) -> bool:
        """Whether GEMMs run while intermediates move: in neither kernel."""
        return False

    @property
    def operand_bytes(self) -> Array:
        """Bytes of inputs and outputs, decays and states included."""
        decays = 2.0 * self.batch * self.q_len * self.heads * self.key_dim
        tokens = self.key_heads * self.key_dim + self.heads * self.value_dim
        return 4.0 * self.batch * self.q_len * tokens + 8.0 * self.state + decays


def shape(row: Row) -> KimiDelta:
    """The kernels of rows with `variant, batch, q_len, heads, key_dim, value_dim`: heads of keys and of values."""
    found = gated_delta_rule.shape({**row, "key_heads": column(row, "heads")})
    return KimiDelta(*(getattr(found, name) for name in found.__struct_fields__))
