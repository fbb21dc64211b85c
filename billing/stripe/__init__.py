"""Talks to Stripe: one client, its errors, and the few of its objects that billing reads.

Only ``client`` imports the SDK. It decides nothing about money and stores nothing.
"""
