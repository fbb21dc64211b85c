"""Collects money at Stripe: a queue of operations for each tenant, dunning, and what goes back.

Each operation takes effect once and each payment is booked once, whatever process dies (``charging`` says how). What is
due is read from ``invoices``; Stripe has no copy of an invoice.
"""
