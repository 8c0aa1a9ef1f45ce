"""Advice as a document and as pages: the answer first, then what it rests on."""

from roofline.reports.documents.advice.document import advice_document
from roofline.reports.documents.advice.page import advice_blocks
from roofline.reports.documents.advice.rules import rules_blocks, rules_document

__all__ = ["advice_blocks", "advice_document", "rules_blocks", "rules_document"]
