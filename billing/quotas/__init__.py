"""Keeps the quotas in Redis, by which gateways admit requests, equal to the ledger.

The ledger decides: quotas are rebuilt from it after a data loss, compared with it while tenants are active, and follow
the adjustments of running periods. What a tenant may spend is in ``limits``.
"""
