"""The documents and the blocks of `roofline advise`."""

from roofline.reports.documents.advice.document import advice_document, rules_document
from roofline.reports.documents.advice.page import advice_blocks, rules_blocks
from roofline.reports.output.blocks import Face

__all__ = ["ADVICE", "advice_blocks", "advice_document", "rules_blocks", "rules_document"]

ADVICE = Face(advice_document, advice_blocks, lambda document: document["recommendations"])
