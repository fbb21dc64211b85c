"""Shares out what replicas cost over tenants, and compares it with what they earn (docs/COSTS.md).

The shares of an hour add up to its cost. It only reads usage and revenue, and changes nothing that a tenant is charged.
"""
