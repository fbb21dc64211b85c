"""Meters what tenants use besides requests, by the hour: adapter storage, pinned slots and cold loads.

An hour is metered once and never changes. What it costs is in ``charges``.
"""
