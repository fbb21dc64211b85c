"""A tenant's contract over time: plan, calendar, discounts, and how far its usage is invoiced.

Recording reads a tenant's row FOR SHARE and a close FOR UPDATE, so a record is on the invoice or late for the next one.
Prices are in ``prices``, and what a discount takes off is in ``charges``.
"""
