"""What a tenant may spend: the ceiling of its credit, and its limits by day and month.

It stores what gateways enforce, and alerts the tenant. The counts that gateways keep are in ``quotas``.
"""
