"""What plans charge: price cards, their dated versions, and a tenant's own prices.

Versions are append-only and begin in the future, so rating a record again gives the same amount. Which plan a tenant
has is in ``subscriptions``; what a period costs by these prices is in ``charges``.
"""
