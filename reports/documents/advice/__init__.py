"""The documents and the blocks of `roofline advise`."""

from roofline.reports.documents.advice.document import advice_document, rules_document
from roofline.reports.documents.advice.page import advice_blocks, rules_blocks

__all__ = ["advice_blocks", "advice_document", "rules_blocks", "rules_document"]
