"""Informs tenants by e-mail and webhooks of what billing did.

An alert is written in the transaction of its cause, once for each key, and delivered later, at least once. No money
depends on a delivery.
"""
