"""Counts engines, ledger, invoices and Stripe independently, and stores where they differ.

A difference is explained by the ids of requests, or it is an alarm. Nothing is corrected here.
"""
