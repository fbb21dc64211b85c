"""Computes what a period costs: from sums of usage, prices and a tenant's contract to the draft lines of an invoice.

Most files are pure; ``inputs`` and ``period`` read what they need. It posts adjustments of the running period. It makes
no invoice, pays nothing and knows no credit.
"""
