"""Computes what a period costs: from sums of usage, prices and a tenant's contract to the draft lines of an invoice.

Most files are pure. ``inputs`` reads what they need; ``period`` posts the difference to the ledger and stores what a
closed period leaves. It makes no invoice, pays nothing and knows no credit.
"""
