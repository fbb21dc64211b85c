"""Shows invoices to people: PDF and CSV, and the requests behind each line.

It writes nothing, and the same invoice always gives the same pages. What an invoice says is decided in ``invoicing``.
"""
