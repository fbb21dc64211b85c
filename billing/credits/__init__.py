"""Prepaid and promotional credit: lots, their entries, and the order in which they pay for usage.

A lot never becomes negative, and each entry has a transfer in the ledger. What a lot pays is computed when it is read.
What a tenant may spend by its credit is in ``limits``; buying credit is in ``payments``.
"""
