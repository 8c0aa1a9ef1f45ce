"""Advice as a document and as pages: the answer first, then what it rests on."""

from reports.advice.document import advice_document
from reports.advice.page import advice_blocks
from reports.advice.rules import rules_blocks, rules_document

__all__ = ["advice_blocks", "advice_document", "rules_blocks", "rules_document"]
